"""FedC2I: leave-one-out influence against brute force, the round, ablations and the figure."""

import functools

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from hypernetworks import memory_of_a_round
from slow_cases import exhaustive_but

from fedjax_lab import tree
from fedjax_lab.commands import figures
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.methods.fedc2i import Server, class_losses, client_losses, mix_classes, sharpen
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task, split_head
from fedjax_lab.papers.fedc2i import influence_figures
from fedjax_lab.running import runner
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.client_work import make_work
from fedjax_lab.types import Batch, State

M = 5


@functools.cache
def models(task=toys.NORM, count=M):
    """Models with different parameters and running statistics."""
    w = clusters.distinct_starts(task, jax.random.key(0), count)
    noise = jax.random.split(jax.random.key(9), len(jax.tree.leaves(w)))
    leaves, shape = jax.tree.flatten(w)
    moved = [a + jax.random.uniform(k, a.shape) for a, k in zip(leaves, noise, strict=True)]
    return jax.tree.unflatten(shape, moved)


def batch(count=7, padded=3):
    x, y = toys.FEDERATION.x[: count + padded], toys.FEDERATION.y[: count + padded]
    return Batch(x, y, (jnp.arange(count + padded) < count).astype(jnp.float32))


def loss_of(w, task=toys.NORM):
    """Mean cross-entropy over the seven real examples."""
    logits = np.asarray(task.apply(w, batch().x[:7]).logits, float)
    y = np.asarray(batch().y[:7])
    return (np.log(np.exp(logits).sum(1)) - logits[np.arange(7), y]).mean()


def without(i, w=None):
    """The mean of all models but one, including running statistics."""
    return jax.tree.map(lambda a: np.delete(np.asarray(a), i, 0).mean(0), w or models())


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, M])
def test_client_losses_are_computed_with_leave_one_out_bodies(count):
    """Eq. 4: the mean body without i, with its running statistics, and the client's head.

    Of two clients, the other one is left.
    """
    w = models(count=count)
    model_of_client = tree.take(w, 1)
    actual = jax.jit(lambda *w: client_losses(toys.NORM, *w, batch()))(w, model_of_client)
    for i in range(count):
        body = split_head(toys.NORM, without(i, w))[0]
        mixed = tree.join(body, split_head(toys.NORM, model_of_client)[1])
        assert float(actual[i]) == pytest.approx(loss_of(mixed), rel=1e-4)


@pytest.mark.slow
def test_class_losses_equal_brute_force():
    """Eqs. 7 and 9, computed by replacing one row and its bias at a time."""
    model_of_client = tree.take(models(), 1)
    _, heads = split_head(toys.NORM, models())
    of_classes = jax.jit(lambda heads, w: class_losses(toys.NORM, heads, w, batch()))
    actual = np.asarray(of_classes(heads, model_of_client))
    assert actual.shape == (M, toys.K)
    for i in range(M):
        mean = without(i).params["head"]
        for c in range(toys.K):
            head = {k: np.array(v) for k, v in model_of_client.params["head"].items()}
            head["kernel"][:, c], head["bias"][c] = mean["kernel"][:, c], mean["bias"][c]
            w = model_of_client._replace(params={**model_of_client.params, "head": head})
            assert actual[i, c] == pytest.approx(loss_of(w), abs=1e-5)
    # One class may dominate: the form log(exp(lse) - exp(z_c)) would suffer from cancellation.
    head = model_of_client.params["head"]
    sharp = {**model_of_client.params, "head": {**head, "kernel": 1e3 * head["kernel"]}}
    assert np.isfinite(of_classes(heads, model_of_client._replace(params=sharp))).all()


def test_weights_are_normalized_powers_of_the_loss():
    loss = jnp.array([[0.5, 2.0], [1.0, 1e-30], [0.25, 0.0]])
    for gamma in (0.0, 0.5, 5.0, 10.0):
        weight = np.asarray(sharpen(gamma, loss))
        np.testing.assert_allclose(weight.sum(0), 1, rtol=1e-6)
        expected = np.array(loss[:, 0]) ** gamma
        np.testing.assert_allclose(weight[:, 0], expected / expected.sum(), rtol=1e-4)
    np.testing.assert_allclose(sharpen(0.0, loss), 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(sharpen(10.0, jnp.zeros((4, 2))), 1 / 4, rtol=1e-6)


def test_rows_and_biases_of_the_head_are_mixed_by_class():
    rng = np.random.default_rng(0)
    weight, rows, bias = rng.random((3, 4)), rng.random((3, 6, 4)), rng.random((3, 4))
    actual = mix_classes(jnp.asarray(weight), jnp.asarray(rows))
    for c in range(4):
        expected = sum(weight[i, c] * rows[i, :, c] for i in range(3))
        np.testing.assert_allclose(actual[:, c], expected, rtol=1e-5)
    mixed = mix_classes(jnp.asarray(weight), jnp.asarray(bias))
    np.testing.assert_allclose(mixed, (weight * bias).sum(0), rtol=1e-5)


def mixtures(method, server):
    """The state after a round without steps, with the model that each client starts from."""
    plan = toys.PLAN._replace(epochs=0, cohort=toys.C)
    state = State(server, jnp.zeros((toys.C, toys.C)))
    return toys.player(method, plan=plan)(naive.KEYS, 0, 1, state)[0]


@pytest.mark.slow
def test_a_round_mixes_bodies_by_client_and_heads_by_class_influence():
    """Eqs. 6 and 10 for every client, with a batch of 32 of its examples, or of all if fewer."""
    w = models(count=toys.C)
    method = toys.make("fedc2i", gamma=2.0)
    state = mixtures(method, Server(w, toys.POPULATION.n))
    k_local = jax.random.fold_in(naive.KEYS.local, 0)
    bodies, heads = split_head(toys.NORM, w)
    for m in range(toys.C):
        work, _ = make_work(
            toys.FEDERATION, toys.FEDERATION.train[m], toys.PLAN, jax.random.fold_in(k_local, m)
        )
        drawn, model_of_client = work.draw(32), tree.take(w, m)
        assert float(drawn.mask.sum()) == min(32, float(toys.POPULATION.n[m]))
        lam = sharpen(2.0, client_losses(toys.NORM, w, model_of_client, drawn))
        Lam = sharpen(2.0, class_losses(toys.NORM, heads, model_of_client, drawn))
        np.testing.assert_allclose(state.private[m], lam, rtol=1e-4)
        body = jax.tree.map(lambda a: np.tensordot(lam, a, 1), bodies)  # noqa: B023
        head = jax.tree.map(lambda a: mix_classes(Lam, a), heads)  # noqa: B023
        toys.close(tree.take(state.server.models, m), tree.join(body, head), rtol=1e-4, atol=1e-5)
    assert np.abs(np.asarray(state.private) - 1 / toys.C).max() > 0.01


@pytest.mark.parametrize(
    "hyper, body, head",
    exhaustive_but(
        [({"head": "lambda"}, "influence", "lambda")],
        [
            ({"head": "local"}, "influence", "own"),
            ({"head": "lambda"}, "influence", "lambda"),
            ({"head": "mean"}, "influence", "mean"),
            ({"body": "local"}, "own", "influence"),
            ({"body": "mean"}, "mean", "influence"),
        ],
    ),
)
def test_ablations_replace_one_part(hyper, body, head):
    """The other part is that of the complete method."""
    w = models(count=toys.C)
    server = Server(w, toys.POPULATION.n)
    whole = mixtures(toys.make("fedc2i"), server)
    actual = mixtures(toys.make("fedc2i", **hyper), server)
    share = np.asarray(toys.POPULATION.n / toys.POPULATION.n.sum())
    mean = tree.repeat(jax.tree.map(lambda a: np.tensordot(share, a, 1), w), toys.C)
    by_lambda = tree.mix(actual.private, w)
    expected_parts = {"own": w, "mean": mean, "lambda": by_lambda, "influence": whole.server.models}
    parts = split_head(toys.NORM, actual.server.models)
    toys.close(parts[0], split_head(toys.NORM, expected_parts[body])[0], rtol=1e-4, atol=1e-5)
    toys.close(parts[1], split_head(toys.NORM, expected_parts[head])[1], rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
def test_means_are_over_the_clients_that_have_uploaded():
    w, n = models(count=toys.C), jnp.array([0.0, 10, 0, 30, 0, 0, 20, 0])
    state = mixtures(toys.make("fedc2i", body="mean", head="mean"), Server(w, n))
    expected = jax.tree.map(lambda a: np.tensordot(np.asarray(n) / 60, a, 1), w)
    toys.close(state.server.models, tree.repeat(expected, toys.C), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_clients_train_from_their_mixture():
    """Compares all parameters with those of NumPy's SGD."""
    w = models(toys.TASK, toys.C)
    method = toys.make("fedc2i", toys.TASK)
    server = State(Server(w, toys.POPULATION.n), jnp.zeros((toys.C, toys.C)))
    plan = naive.FULL._replace(cohort=toys.C)
    start = toys.player(method, plan=plan._replace(epochs=0))(naive.KEYS, 0, 1, server)[0]
    after = toys.player(method, plan=plan)(naive.KEYS, 0, 1, server)[0]
    for i in range(toys.C):
        mixed = naive.weights_of(tree.take(start.server.models, i))
        expected = naive.sgd(mixed, *naive.data_of(i))
        naive.close(tree.take(after.server.models, i), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_client_outside_the_cohort_keeps_its_model():
    method = toys.make("fedc2i")
    plan = toys.PLAN._replace(cohort=3)
    first = simulate.init(method, naive.KEYS, toys.C)
    state, _ = toys.player(method, plan=plan)(naive.KEYS, 0, 1)
    ids = naive.cohort(method, 0, 3)
    for i in range(toys.C):
        a, b = (tree.take(s.server.models, i) for s in (first, state))
        same = all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))
        assert same == (i not in ids)
        assert float(state.server.n[i]) == (float(toys.POPULATION.n[i]) if i in ids else 0)
    toys.same(method.scored(state.server, ids[0]), tree.take(state.server.models, ids[0]))


@pytest.mark.exhaustive
def test_memory_does_not_grow_with_the_number_of_pairs_of_clients():
    """With twice the clients, a round needs about twice the memory: less than 2.6 times."""
    method = toys.make("fedc2i", make_task(nets.mlp(toys.K, width=1024), (toys.D,), toys.K))
    few, many = (memory_of_a_round(method, count).temp_size_in_bytes for count in (16, 32))
    assert many / few < 2.6


@pytest.mark.exhaustive
def test_influence_is_recorded_at_every_evaluation_and_drawn(tmp_path, capsys):
    domain = np.array(["north", "south", "west"])[np.arange(300) % 3]
    toys.write_examples(tmp_path / "data.npz", domain=domain)
    sections = {
        "partition": {"name": "by_domain", "num_clients": 3},
        "method": {"name": "fedc2i"},
        "run": {"rounds": 3, "eval_every": 1},
    }
    e = toys.build(tmp_path, (0, 1), **sections)
    result = runner.run(e, tmp_path / "run", quiet=True)
    for row in result.metrics:
        influence = np.array(row["recorded"]["influence"])
        assert influence.shape == (3, 3)
        np.testing.assert_allclose(influence.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(influence, result.states[1].private, rtol=1e-6)

    rounds, names = influence_figures.influence(tmp_path / "run", seed=0)
    assert sorted(rounds) == [1, 2, 3] and names == ["north", "south", "west"]
    np.testing.assert_array_equal(rounds[2], result.metrics[2]["recorded"]["influence"])
    command = ["fedc2i", str(tmp_path / "run"), "--rounds=1,3"]
    assert figures.main(command) == 0
    assert (tmp_path / "run/figures/influence.png").stat().st_size > 1000
    assert figures.main([*command[:2], "--rounds=1,4"]) == 2
    assert "round 4 was not evaluated; valid rounds: [1, 2, 3]" in capsys.readouterr().err
