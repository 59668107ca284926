"""Client2Vec: the three ways in which the index of clients improves a base method."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
import toys
from indices import INDEX, KEYS, POPULATION, RNG, TASK, C, stages
from inputs import complaint
from slow_cases import exhaustive_but

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.papers.client2vec import index as client_index
from fedjax_lab.simulation import simulate
from fedjax_lab.testing.toy import needs_adapters
from fedjax_lab.types import State

pytestmark = pytest.mark.usefixtures("small_network")

WITH_VALIDATION = toys.with_validation(toys.SKEWED)


def improved(clients_index=INDEX, **settings):
    """The method of the training stage, its first state with this index, and the stage."""
    stage = stages(**settings)[-1]
    last = State(client_index.Server(KEYS.init, *(None,) * 4, clients_index), ())
    facts = clients_index._asdict()
    return stage.method, stage.start(jax.random.key(9), C, last, facts), stage


def federation(stage, state):
    frozen = stage.frozen(state.server) if stage.frozen else ()
    return toys.SKEWED._replace(frozen=frozen)


def played(rounds, method, state, stage):
    play = toys.player(method, federation=federation(stage, state))
    return play(KEYS, 0, rounds, state)[0]


def naive_S(i, chosen, index=INDEX):
    n = np.asarray(POPULATION.n)

    def cos(a, b):
        a, b = (v.astype(np.float64) for v in (a, b))
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    total = sum(
        n[j] * (cos(index.feature[i], index.feature[j]) + cos(index.label[i], index.label[j]))
        for j in chosen
    )
    return total / (2 * sum(n[j] for j in chosen))


def with_age(state, age):
    return state.server._replace(age=jnp.asarray(age))


@pytest.mark.slow
def test_clients_are_sampled_with_the_probabilities_of_eq_1():
    """A chi-square test over all ordered pairs, with 10,000 draws without replacement."""
    tau = 0.4
    method, state, _ = improved(sampling_tau=tau)
    # 8 clients, 2 per round: those of the last two rounds (2 and 5, then 0 and 1) are excluded
    server = with_age(state, [2, 2, 1, 3, 9, 1, 9, 4])
    keys = jax.random.split(jax.random.key(3), 10_000)
    ids, shares = jax.jit(jax.vmap(lambda k: method.sample(k, server, POPULATION, 2)))(keys)
    eligible = [3, 4, 6, 7]
    p = {i: np.exp(naive_S(i, [2, 5]) / tau) for i in eligible}
    expected, observed = [], []
    for a in eligible:
        for b in eligible:
            if a != b:
                first = p[a] / sum(p.values())
                expected.append(1e4 * first * p[b] / (sum(p.values()) - p[a]))
                observed.append(np.sum((ids[:, 0] == a) & (ids[:, 1] == b)))
    assert sum(observed) == 10_000
    assert scipy.stats.chisquare(observed, expected).pvalue > 1e-3
    n = np.asarray(POPULATION.n)[np.asarray(ids)]
    np.testing.assert_allclose(shares, n / n.sum(1, keepdims=True), rtol=1e-6)


def test_the_first_cohort_is_uniform_and_excluded_clients_fill_a_shortage():
    method, state, _ = improved(sampling_tau=0.1)
    draw = jax.jit(jax.vmap(lambda k, s: method.sample(k, s, POPULATION, 3)[0], (0, None)))
    keys = jax.random.split(jax.random.key(4), 8_000)
    counts = np.bincount(np.asarray(draw(keys, state.server))[:, 0], minlength=C)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    ids = np.asarray(draw(keys, with_age(state, [1, 1, 1, 1, 1, 1, 5, 7])))  # 6 and 7 are eligible
    assert (np.sort(ids[:, :2], 1) == [6, 7]).all()
    counts = np.bincount(ids[:, 2], minlength=C)
    assert counts[6:].sum() == 0
    assert scipy.stats.chisquare(counts[:6]).pvalue > 1e-3
    # C / 2M is 8 / 6 here: only the clients of one round are excluded
    ids = np.asarray(draw(keys, with_age(state, [1, 1, 1, 2, 2, 2, 9, 9])))
    assert np.bincount(ids.ravel(), minlength=C).astype(bool).tolist() == [False] * 3 + [True] * 5


def history(**settings):
    """H after a round of client 2."""
    method, state, _ = improved(history_gamma=0.0, **settings)
    cohort = tree.take(POPULATION, jnp.array([2]))
    aggregate = jax.jit(method.round[0].aggregate)
    return aggregate(state.server, tree.repeat(state.server.base, 1), cohort).history


def test_similarity_to_one_client_may_use_one_part_of_the_index():
    table = history()
    expected = [naive_S(i, [2]) for i in range(C)]
    np.testing.assert_allclose(table, expected, rtol=1e-4, atol=1e-6)
    for part in ("feature", "label"):
        b = getattr(INDEX, part)
        b = b / np.linalg.norm(b, axis=1, keepdims=True)
        of_part = history(index_part=part, local_training=False)
        np.testing.assert_allclose(of_part, b @ b[2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("gamma, lam", [(0.5, 1.0), (0.0, 0.5), (0.9, 1e9)])
def test_aggregation_shares_follow_eq_3(gamma, lam):
    """The recursion equals the explicit double sum; a huge lambda gives shares by size."""
    method, state, _ = improved(history_gamma=gamma, history_lambda=lam, local_training=False)
    n, rounds = np.asarray(POPULATION.n), [[0, 3, 5], [1, 3, 4], [7, 2, 0]]
    server, aggregate = state.server, jax.jit(method.round[0].aggregate)
    uploads = tree.repeat(server.base, 3)
    uploads = jax.tree.map(lambda a: a + RNG.normal(size=a.shape).astype(np.float32), uploads)
    for t, ids in enumerate(rounds):
        cohort = tree.take(POPULATION, jnp.array(ids))
        server = aggregate(server, uploads, cohort)
        H = [
            sum(
                gamma ** (t - s) * naive_S(i, rounds[s]) if gamma or t == s else 0
                for s in range(t + 1)
            )
            for i in ids
        ]
        p = n[ids] * np.exp(np.array(H) / lam)
        p = p / p.sum()
        if lam == 1e9:
            np.testing.assert_allclose(p, n[ids] / n[ids].sum(), rtol=1e-6)
        toys.close(server.base, tree.mix(jnp.asarray(p), uploads))
    assert list(np.asarray(server.age)) == [1, 2, 1, 2, 2, 3, C + 1, 1]


@pytest.mark.slow
def test_fedavgm_and_feddyn_aggregate_with_the_new_shares():
    """FedAvgM's step is beta v + sum p (w - w_i); FedDyn's mean is sum p w_i; h does not use p."""
    ids, n = [4, 0, 6], np.asarray(POPULATION.n)
    p = n[ids] * np.exp([naive_S(i, ids) for i in ids])
    p = jnp.asarray(p / p.sum())
    cohort = tree.take(POPULATION, jnp.array(ids))
    cohort = cohort._replace(num_clients=jnp.full(3, float(C)))
    only = dict(sampling=False, local_training=False)
    method, state, _ = improved(base="fedavgm", **only)
    plain = toys.make("fedavgm", TASK)
    uploads = tree.repeat(TASK.init(jax.random.key(7)), 3)
    uploads = jax.tree.map(lambda a: a + RNG.normal(size=a.shape).astype(np.float32), uploads)
    actual = method.round[0].aggregate(state.server, uploads, cohort).base
    toys.close(
        actual, plain.round[0].aggregate(state.server.base, uploads, cohort._replace(weight=p))
    )
    method, state, _ = improved(base="feddyn", **only)
    server = method.round[0].aggregate(state.server, uploads, cohort)
    actual = server.base
    toys.same(method.scored(server, 0), actual.mean)
    toys.close(actual.mean.params, tree.mix(p, uploads.params))
    before = state.server.base
    moved = jax.tree.map(lambda a, b: jnp.sum(a - b, 0), uploads.params, before.theta.params)
    toys.close(actual.h, optax.tree.scale(-0.1 / C, moved))


def trained(settings):
    """The first model, the rows of client 2, and the model after its full-batch step of SGD."""
    method, state, stage = improved(aggregation=False, **settings)
    rows = toys.SKEWED.train[2]
    plan = toys.PLAN._replace(batch_size=64, epochs=1, optimizer=optax.sgd(0.1))
    client = tree.take(POPULATION._replace(private=()), 2)

    @jax.jit
    def step(federation, w):
        work, _ = simulate.make_work(federation, rows, plan, KEYS.local)
        return method.round[0].local(w, client, work)[0]

    return state.server.base, rows[rows >= 0], step(federation(stage, state), state.server.base)


@pytest.mark.parametrize(
    "settings, orth",
    exhaustive_but(
        [{}],
        [
            ({}, jnp.mean),
            ({"orth_reduction": "sum"}, jnp.sum),
            ({"orth_reduction": "batchmean"}, lambda products: jnp.sum(products) / len(products)),
            ({"local_orth": False}, lambda products: 0.0),
            ({"detach_teacher": True}, jnp.mean),
        ],
    ),
)
def test_local_training_adds_the_loss_of_eq_4(settings, orth):
    """Compares a step with the gradient of the loss written out naively."""
    w, rows, after = trained({"local_weight": 0.07, **settings})
    x, y = toys.SKEWED.x[rows], np.asarray(toys.SKEWED.y[rows])

    def naive(params):
        body = {k: v for k, v in params.items() if k != "side"}
        out = toys.NORM.apply(w._replace(params=body), x, jax.random.key(0))
        z_P = out.features @ params["side"]["P"]  # [B, E]
        o_P = z_P @ params["side"]["head"]["kernel"] + params["side"]["head"]["bias"]
        teacher = jax.lax.stop_gradient(out.logits) if "detach_teacher" in settings else out.logits
        p, q = (jax.nn.softmax(a) for a in (teacher, o_P))
        ce = -jnp.mean(jnp.log(jax.nn.softmax(out.logits)[np.arange(len(y)), y]))
        products = jnp.stack([jnp.abs(z_P @ b) for b in INDEX.feature], 1)
        return ce + 0.07 * (orth(products) + jnp.mean(jnp.sum(p * jnp.log(p / q), 1)))

    expected = jax.tree.map(lambda a, g: a - 0.1 * g, w.params, jax.grad(naive)(w.params))
    toys.close(after.params, expected, rtol=1e-3, atol=1e-5)
    assert np.abs(after.params["side"]["P"] - w.params["side"]["P"]).max() > 1e-5


@pytest.mark.parametrize("index, w", [("global", 5.0), ("federated", 1.0)])
def test_the_default_local_weight_is_that_of_the_paper(index, w):
    toys.close(trained({"index": index})[2], trained({"index": index, "local_weight": w})[2])


@pytest.mark.slow
def test_with_all_three_improvements_off_it_is_the_base_method():
    off = dict(sampling=False, aggregation=False, local_training=False)
    method = registry.make_method("client2vec", toys.NORM, base="fedprox", mu=0.3, **off)
    plain = toys.make("fedprox", mu=0.3)
    toys.same(*(toys.player(m)(KEYS, 0, 2) for m in (method, plain)))


@pytest.mark.slow
def test_a_base_with_two_exchanges_updates_the_history_once_per_round():
    """With FedIIR, H and the ages are updated once; FedIIR's mean gradient is updated, too."""
    method, state, stage = improved(base="fediir", local_training=False)
    server = played(1, method, state, stage).server
    ids = np.flatnonzero(np.asarray(server.age) == 1)
    assert len(ids) == toys.PLAN.cohort and set(np.asarray(server.age)) == {1, C + 1}
    np.testing.assert_allclose(server.history, [naive_S(i, ids) for i in range(C)], rtol=1e-4)
    assert float(jnp.abs(server.base.g["kernel"]).max()) > 0


def test_a_base_that_fine_tunes_is_scored_after_tuning():
    """FineTune's last steps are taken with the modified loss, and they change P."""
    method, state, stage = improved(base="finetune")
    work, _ = simulate.make_work(
        federation(stage, state), toys.SKEWED.train[1], toys.PLAN, KEYS.score
    )
    w, _ = method.tune(method.scored(state.server, 1), tree.take(POPULATION, 1), work)
    assert jax.tree.structure(w) == jax.tree.structure(state.server.base)
    assert (
        float(jnp.abs(w.params["side"]["P"] - state.server.base.params["side"]["P"]).max()) > 1e-5
    )


def test_a_new_client_joins_as_in_the_base_method():
    """FedRep's new head is trained on the body of the base, with the modified loss."""
    plain, modified = (
        improved(base="fedrep", local_weight=w, local_training=w > 0) for w in (0.0, 50.0)
    )
    heads = []
    for method, state, stage in (plain, modified):
        of_client = federation(stage, state), toys.SKEWED.train[1]
        work, _ = simulate.make_work(*of_client, toys.PLAN, KEYS.score)
        body, head = method.join(state.server, tree.take(POPULATION, 1), work)
        toys.same(body, state.server.base)
        heads.append(head.params["head"]["kernel"])
    assert float(jnp.abs(heads[0] - heads[1]).max()) > 1e-5


def test_the_index_of_local_weights_holds_the_uploaded_heads():
    """H is computed from the heads that were uploaded in the same round."""
    stage = stages(index="local_weights", history_gamma=0.0)[-1]
    state = stage.start(KEYS.init, C, None, {})
    ids = [3, 1]
    uploads = tree.repeat(state.server.base, 2)
    uploads = jax.tree.map(lambda a: a + RNG.normal(size=a.shape).astype(np.float32), uploads)
    cohort = tree.take(POPULATION, jnp.array(ids))
    server = jax.jit(stage.method.round[0].aggregate)(state.server, uploads, cohort)
    head = uploads.params["head"]
    heads = np.concatenate([head["kernel"].reshape(2, -1), head["bias"]], 1)
    np.testing.assert_array_equal(server.index.feature[jnp.array(ids)], heads)
    a, b = (v / np.linalg.norm(v) for v in heads)
    n = np.asarray(POPULATION.n)[ids] / np.asarray(POPULATION.n)[ids].sum()
    expected = np.zeros(C)
    expected[ids] = n[0] + n[1] * (a @ b), n[0] * (a @ b) + n[1]
    np.testing.assert_allclose(server.history, expected, rtol=1e-4)


def one_round(base):
    method, state, stage = improved(base=base)
    program = simulate.Program(method, toys.PLAN, toys.VECTORIZED)
    given = federation(stage, state)
    if method.validation:
        given = given._replace(validation=WITH_VALIDATION.validation)
    lane = simulate.Lane(given, POPULATION, KEYS)
    return simulate.play_round(program, lane, state, 0)[0]


@pytest.mark.exhaustive
def test_every_method_can_be_a_base_or_is_rejected_with_a_reason():
    """Rounds are only traced, not run.

    The losses of FedPick and FedSR call parts of a model, those of FedEM and Floco several models.
    """
    rejected = set()
    for base in itertools.filterfalse(needs_adapters, registry.METHODS):
        try:
            jax.eval_shape(functools.partial(one_round, base))
        except BadInput as error:
            assert "method.base" in str(error) or base in str(error)
            rejected.add(base)
    in_stages, alone, several_passes, narrower = (
        {"ccvr", "fedap", "fedconcat", "fedconcat_id", "fedfed", "metafed", "pfedsim"},
        {"central", "pfedhn"},
        {"fedpick", "floco", "pfedme", "fedem"},
        {"federated_dropout", "fedrolex", "fjord", "heterofl"},
    )
    rejecting = in_stages | alone | several_passes | narrower | {"fedsr", "client2vec"}
    assert rejected == rejecting


def test_settings_of_the_method_and_of_any_base_have_distinct_names():
    look_up = functools.partial(registry.look_up, "method")
    of_wrapper = set(registry.default_settings(look_up("client2vec"), {"base": "fedavg"}))
    for name in registry.METHODS:
        if name != "client2vec":
            assert not of_wrapper & set(registry.default_settings(look_up(name))), name


def test_the_valid_settings_depend_on_the_chosen_base():
    """A change of base on the command line drops settings that only the old base has."""
    config = {"method": {"name": "client2vec", "base": "moon", "mu": 0.1, "index_epochs": 3}}
    assert resolve(config).method.mu == 0.1
    changed = resolve(config, [("method.base", "fedavgm"), ("method.beta", "0.5")])
    assert changed.method.beta == 0.5 and changed.method.index_epochs == 3
    assert "mu" not in changed.method
    assert "beta" in complaint(resolve, config, [("method.beta", "0.5")])
    changed = resolve({}, [("method.name", "client2vec"), ("method.base", "fedprox")])
    assert changed.method.mu == 0.01
