"""Checks scores and metrics against NumPy and scikit-learn."""

from functools import partial

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from scikit import metrics_of
from scipy.special import softmax

from fedjax_lab.engine import parallel
from fedjax_lab.engine.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.simulation import evaluate, metrics, simulate, units
from fedjax_lab.simulation.population import new_on_host


def share_right(w, rows):
    """The percentage of these rows that a model classifies correctly."""
    x, y = np.asarray(toys.FEDERATION.x)[rows], np.asarray(toys.FEDERATION.y)[rows]
    return 100 * (np.asarray(toys.TASK.apply(w, x).logits).argmax(1) == y).mean()


def score(method, federation, state, plan=toys.PLAN, strategy=toys.VECTORIZED):
    """The scores of a state, also on the new clients that the federation may have."""
    new = None
    if federation.new_train is not None:
        new = jax.tree.map(jnp.asarray, new_on_host(federation, toys.K))
    lane = simulate.Lane(federation, toys.POPULATION, KEYS, new=new)
    run = jax.jit(partial(evaluate.score, simulate.Program(method, plan, strategy)))
    return jax.device_get(run(lane, state, 0))


@pytest.mark.slow
def test_scores_against_numpy(with_all_metrics):
    """FedAvg on test rows, validation rows, the global test set and an unseen domain."""
    state, each_rows, got = with_all_metrics
    of = partial(share_right, state.server)
    rows, near = [r for r in each_rows if len(r)], pytest.approx
    each, every = [of(r) for r in rows], np.concatenate(rows)
    assert got["accuracy"] == {
        "mean": near(np.mean(each)),
        "weighted": near(of(every)),
        "worst10": near(min(each)),
        "min": near(min(each)),
        "max": near(max(each)),
        "variance": near(np.var(each)),
        "gini": near(np.abs(np.subtract.outer(each, each)).mean() / (2 * np.mean(each))),
        "per_client": [near(of(r)) if len(r) else None for r in each_rows],
    }
    assert got["domains"] == {name: near(of(every[every % 2 == i])) for i, name in enumerate("ab")}
    assert got["global"] == near(of(np.arange(400, 600)))
    assert got["ood"] == near(of(np.arange(500, 533)))
    on_validation = [of(r[:9]) if len(r) else None for r in each_rows]
    assert got["id_per_client"] == [share and near(share) for share in on_validation]
    assert got["id"] == near(np.mean([share for share in on_validation if share is not None]))


def test_worst10_is_the_mean_over_the_worst_tenth_of_the_clients():
    right = np.arange(25.0)[:, None]
    hits = evaluate.Counts(right, np.full((25, 1), 100.0), {"loss": right})
    got = evaluate.summarize(evaluate.Scores(None, hits, None, None), ("all",))
    assert got["accuracy"]["worst10"] == 0.5  # the two lowest: 0 and 1
    assert got["loss"]["worst10"] == pytest.approx(0.235)  # the two highest: 0.23 and 0.24
    assert "domains" not in got and "global" not in got
    right = np.zeros((25, 1))  # nothing to divide among the clients
    unfair = evaluate.summarize(
        evaluate.Scores(None, hits._replace(correct=right), None, None), ("all",)
    )["accuracy"]
    assert unfair["gini"] == unfair["variance"] == 0


@pytest.mark.slow
def test_global_score_of_a_personal_method_is_the_mean_over_clients():
    method = toys.make("local", toys.TASK)
    state = toys.player(method)(KEYS, 0, 3)[0]
    models = [jax.tree.map(lambda a, i=i: a[i], state.private) for i in range(toys.C)]
    expected = np.mean([share_right(w, np.arange(400, 600)) for w in models])
    scores = score(method, toys.FEDERATION, state)
    assert evaluate.summarize(scores, ("all",))["global"] == pytest.approx(expected)


def brier(logits, labels, mask):
    """A user-defined metric that has a value for each example."""
    return jnp.sum((jax.nn.softmax(logits) - jax.nn.one_hot(labels, toys.K)) ** 2, 1)


def hardest(logits, labels, mask):
    """A user-defined metric that needs all examples at once."""
    margin = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0] - jnp.max(logits, 1)
    return jnp.min(jnp.where(mask > 0, margin, jnp.inf))


def all_metrics():
    return metrics.make([*metrics.BUILT_IN.values(), brier, hardest], toys.K)


def in_sklearn(w, rows):
    """Every metric of a model on these rows, computed by scikit-learn and NumPy."""
    logits = np.asarray(toys.TASK.apply(w, np.asarray(toys.FEDERATION.x)[rows]).logits, float)
    y = np.asarray(toys.FEDERATION.y)[rows]
    return {
        **metrics_of(logits, y),
        "top5": 100.0,  # of four classes
        "brier": ((softmax(logits, 1) - np.eye(toys.K)[y]) ** 2).sum(1).mean(),
        "hardest": (logits[np.arange(len(y)), y] - logits.max(1)).min(),
    }


@pytest.fixture(scope="module")
def with_all_metrics():
    """FedAvg after five rounds, and its scores in all metrics: state, rows of clients, summary."""
    test = np.asarray(toys.FEDERATION.test).copy()
    test[1, 7:] = -1
    test[4] = -1
    test[5, 1:] = -1  # one example: no class has both positives and negatives
    federation = toys.FEDERATION._replace(
        test=toys.as_rows(test),
        validation=toys.as_rows(test[:, :9]),
        unseen=jnp.arange(500, 533),
        domain=jnp.asarray(np.arange(600) % 2, jnp.int32),
    )
    method = fedavg(toys.TASK)
    state = toys.player(method)(KEYS, 0, 5)[0]
    plan = toys.PLAN._replace(num_domains=2, eval_batch=8, metrics=all_metrics())
    got = evaluate.summarize(score(method, federation, state, plan), ("a", "b"), plan.metrics)
    return state, [rows[rows >= 0] for rows in test], got


def test_metrics_equal_scikit_learn(with_all_metrics):
    """For each client, on the global test set (in batches of eight) and on an unseen domain.

    Where sums suffice, `weighted` and the domains pool all examples; AUROC is averaged.
    """
    state, rows, got = with_all_metrics
    every, near = np.concatenate(rows), partial(pytest.approx, rel=2e-5, abs=2e-5)
    halves = every[every % 2 == 0], every[every % 2 == 1]
    of_clients = [in_sklearn(state.server, r) if len(r) else None for r in rows]
    on_global, unseen, pooled, a, b = (
        in_sklearn(state.server, r)
        for r in (*map(np.arange, (400, 500), (600, 533)), every, *halves)
    )
    for name in on_global:
        each = [None if client is None else client[name] for client in of_clients]
        assert got[name]["per_client"] == [None if v is None else near(v) for v in each], name
        values = [value for value in each if value is not None]
        assert got[name]["mean"] == near(np.mean(values))
        worst = max if name in ("loss", "perplexity", "ece") else min
        assert got[name]["worst10"] == near(worst(values))
        assert got[f"global_{name}"] == near(on_global[name])
        assert got[f"ood_{name}"] == near(unseen[name])
        assert got[f"ood_{name}_per_client"][0] == near(unseen[name])
    for name in ("loss", "macro_f1", "ece", "perplexity", "brier"):
        assert got[name]["weighted"] == near(pooled[name])
        assert got[f"domains_{name}"] == {"a": near(a[name]), "b": near(b[name])}
    pairs = zip(got["auroc"]["per_client"], map(len, rows), strict=True)
    value, size = np.transpose([pair for pair in pairs if pair[0] is not None])
    assert got["auroc"]["weighted"] == pytest.approx(np.average(value, weights=size))
    assert "domains_auroc" not in got


def test_a_loss_that_is_not_finite_is_null():
    """The loss of one client is infinite: its value and the mean are null, the others are not."""
    counts = evaluate.Counts(
        np.ones((3, 1)), np.full((3, 1), 2.0), {"loss": np.array([[1.0], [np.inf], [4.0]])}
    )
    got = evaluate.summarize(evaluate.Scores(None, counts, None, None), ("all",))
    assert got["loss"]["per_client"] == [0.5, None, 2.0]
    assert got["loss"]["mean"] is None and got["loss"]["min"] == 0.5


@pytest.mark.slow
def test_metrics_of_many_clients_are_computed_by_few_vectorized_calls():
    """100,000 clients take only a few calls of the `value` of each metric."""
    totals, calls = np.ones((100_000, 1)), []
    made = metrics.make([metrics.BUILT_IN["top5"], brier], toys.K)

    def sums(metric):
        like = (jnp.zeros((1, toys.K)), jnp.zeros(1, int), jnp.ones((1, 1)))
        one = metrics.by_domain(metric, *like)
        return jax.tree.map(lambda a: np.ones((100_000, *a.shape), np.float32), one)

    counts = evaluate.Counts(totals, totals, {m.name: sums(m) for m in (metrics.LOSS, *made)})
    made = tuple(m._replace(value=lambda *a, m=m: calls.append(m) or m.value(*a)) for m in made)
    got = evaluate.summarize(evaluate.Scores(None, counts, None, None), ("all",), made)
    assert len(got["top5"]["per_client"]) == 100_000
    assert len(calls) < 5 * len(made)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["finetune", "fedper"])
def test_metrics_do_not_depend_on_devices_or_vectorized_seeds(name):
    """On a mesh of four devices that divides clients, new clients and examples, with two seeds at
    once, for a method with and one without a model for new clients."""
    method = toys.make(name)
    federation = toys.with_new(toys.FEDERATION._replace(domain=toys.FEDERATION.y // 2))
    mesh = parallel.on_mesh(parallel.make_mesh(4), parallel.chunked(2), by_client=True, by_row=True)

    def summaries(strategy, together):
        plan = toys.PLAN._replace(num_domains=2, eval_batch=8, metrics=all_metrics())
        options = {"strategy": strategy, "vectorized_seeds": together}
        engine = Engine(toys.simulation(method, 1, plan, federation, **options))
        engine.compile()
        return [evaluate.summarize(s, ("a", "b"), all_metrics()) for s in engine.evaluate()]

    for ours, theirs in zip(summaries(mesh, True), summaries(toys.VECTORIZED, False), strict=True):
        assert ours.keys() == theirs.keys() >= {"global_auroc", "domains_ece", "hardest"}
        assert ours["accuracy"] == theirs["accuracy"] and ours["global"] == theirs["global"]
        each = [len(ours[f"{form}_per_client"]) for form in units.OF_NEW if form in ours]
        assert each == ([] if name == "fedper" else [3, 3])
        toys.close(ours, theirs, rtol=1e-5)


def test_a_method_that_predicts_classes_instead_of_logits_is_rejected():
    """Their argmax would be one class for the whole batch, and the accuracy meaningless."""
    plain = fedavg(toys.TASK)
    method = plain._replace(predict=lambda *args: jnp.argmax(plain.predict(*args), -1))
    program = simulate.Program(method, toys.PLAN, toys.VECTORIZED)
    lane = simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS)
    state = simulate.init(method, KEYS, toys.C)
    with pytest.raises(BadInput, match="must return logits"):
        jax.eval_shape(partial(evaluate.score, program), lane, state, jnp.int32(0))


def score_new(method, state):
    """The scores of a federation with new clients, and their summary."""
    federation = toys.with_new(toys.FEDERATION)
    scores = score(method, federation, state, naive.FULL)
    return federation, scores, evaluate.summarize(scores, ("all",))


@pytest.mark.slow
def test_new_clients_are_scored_before_and_after_tuning():
    """In NumPy: the global model, and the same model after one gradient step per pass on the rows
    of the client. A new client without test rows has no score."""
    method = toys.make("finetune", toys.TASK, epochs=naive.STEPS)
    state = simulate.init(method, KEYS, toys.C)
    federation, scores, got = score_new(method, state)
    first = naive.weights_of(state.server)
    pool = [np.asarray(a) for a in federation[:2]]
    before, after = [], []
    for train, test in zip(federation.new_train, federation.new_test, strict=True):
        (x, y), (test_x, test_y) = ([a[rows[rows >= 0]] for a in pool] for rows in (train, test))
        tuned = naive.sgd(first, x, y)
        before.append(int((naive.predict(first, test_x) == test_y).sum()))
        after.append(int((naive.predict(tuned, test_x) == test_y).sum()))
    assert scores.new.correct[:, 0].tolist() == before != after
    assert scores.new_tuned.correct[:, 0].tolist() == after
    assert scores.new.total[:, 0].tolist() == [4, 0, 9]
    assert got["new_per_client"] == pytest.approx([25 * before[0], None, 100 * before[2] / 9])
    assert got["new_tuned"] == pytest.approx(np.mean([25 * after[0], 100 * after[2] / 9]))
    assert {"new_loss", "new_loss_per_client", "new_tuned_loss"} <= got.keys()
    plain = evaluate.summarize(scores._replace(new=None, new_tuned=None), ("all",))
    assert plain == {key: value for key, value in got.items() if not key.startswith("new")}


def test_predict_of_a_new_client_gets_its_label_counts_and_the_id_minus_1():
    """Such a client has no weight in a mean."""
    plain = fedavg(toys.TASK)

    def predict(message, client, x):
        most_frequent = jnp.where(client.id == -1, client.label_count, -client.label_count)
        return jnp.broadcast_to(most_frequent, (len(x), toys.K))

    state = simulate.init(plain, KEYS, toys.C)
    federation, scores, _ = score_new(plain._replace(predict=predict), state)
    labels = [
        [np.asarray(federation.y)[held[held >= 0]] for held in rows]
        for rows in (federation.new_train, federation.new_test)
    ]
    expected = [
        int((to_score == np.bincount(held, minlength=toys.K).argmax()).sum())
        for held, to_score in zip(*labels, strict=True)
    ]
    assert scores.new.correct[:, 0].tolist() == expected
    new = new_on_host(federation, toys.K)
    assert new.n.tolist() == [2, 5, 11] and new.num_clients.tolist() == [toys.C] * 3
    assert new.mean_n[0] == toys.POPULATION.mean_n[0] and not new.weight.any()
    assert not set(new.id.tolist()) & set(toys.POPULATION.id.tolist())
    assert scores.new_tuned is None


def test_a_method_without_a_model_for_new_clients_does_not_score_them():
    method = toys.make("fedper")
    _, scores, got = score_new(method, simulate.init(method, KEYS, toys.C))
    assert scores.new is None and scores.new_tuned is None and "new" not in got
