"""FedAP: weights from BatchNorm statistics in NumPy, its stages, and training alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from naive import KEYS

from fedjax_lab import tree
from fedjax_lab.methods import fedap
from fedjax_lab.simulation import failures


def statistics(count=4):
    """Running statistics of two layers of `count` clients, of which the last two are equal."""
    rng = np.random.default_rng(0)
    stats = {
        layer: {"mean": rng.normal(size=(count, D)), "var": rng.uniform(1, 4, (count, D))}
        for layer, D in (("a", 3), ("b", 5))
    }
    for of_layer in stats.values():
        for a in of_layer.values():
            a[-1] = a[-2]
    return stats


def weights(stats, lam):
    """w by the formulas."""
    count = len(stats["a"]["mean"])
    w = np.zeros((count, count))
    for i in range(count):
        for j in set(range(count)) - {i}:
            d = sum(
                np.sqrt(
                    np.sum((s["mean"][i] - s["mean"][j]) ** 2)
                    + np.sum((np.sqrt(s["var"][i]) - np.sqrt(s["var"][j])) ** 2)
                )
                for s in stats.values()
            )
            w[i, j] = 1 / max(d, 1e-12)
        w[i] *= (1 - lam) / w[i].sum()
        w[i, i] = lam
    return w


def test_weights_against_numpy():
    stats = statistics()
    d = fedap.distances(jax.tree.map(jnp.float32, stats))
    w = np.asarray(fedap.weights(d, 0.3))
    np.testing.assert_allclose(w, weights(stats, 0.3), rtol=1e-5, atol=1e-6)
    assert w[2, 3] == pytest.approx(0.7) and w[0].min() > 0.05
    assert fedap.weights(jnp.zeros((1, 1)), 0.3) == 1  # of a single client


def test_a_model_without_batch_norm_is_refused():
    assert "BatchNorm" in complaint(toys.make("fedap", toys.TASK), 4)


def test_the_stages_cover_all_rounds():
    def lengths(rounds, warmup):
        return [stage.rounds for stage in toys.make("fedap", warmup=warmup)(rounds)]

    assert lengths(20, 0.5) == [9, 1, 10]
    assert lengths(20, 0.0) == [1, 19] and lengths(1, 0.5) == [1, 0]


@pytest.mark.slow
def test_a_round_of_each_stage():
    """All clients learn their weights; then models are mixed, and a lost upload changes none."""
    warmup, similarities, personal = toys.make("fedap", lam=0.3)(4)
    begin = warmup.method.init(KEYS.init, toys.C)
    state = similarities.start(KEYS.init, toys.C, begin, {})
    (exchange,) = similarities.method.round
    toys.close(exchange.send(state.server, 3), begin.server)
    shift = jnp.arange(toys.C, dtype=jnp.float32)
    psi = jax.tree.map(lambda a: a + shift.reshape(-1, *[1] * (a.ndim - 1)), state.server.psi)
    rng, width = np.random.default_rng(0), (toys.C, 16)
    named = {"mean": rng.normal(size=width), "var": rng.uniform(1, 2, width)}
    stats = {"BatchNorm_0": jax.tree.map(jnp.float32, named)}
    assert jax.tree.structure(stats) == jax.tree.structure(state.private.stats)
    order = jnp.array([5, 2, 0, 7, 1, 3, 4, 6])
    cohort = tree.take(toys.POPULATION, order)
    server = exchange.aggregate(state.server, tree.take((psi, stats), order), cohort)
    w = weights({"a": named}, 0.3)
    np.testing.assert_allclose(server.w, w, rtol=1e-4)
    (exchange,) = personal.method.round
    mixed = jax.tree.map(lambda a: a + w[6] @ np.arange(toys.C), begin.server)
    toys.close(exchange.send(server, 6), mixed, rtol=1e-4, atol=1e-5)
    ids = jnp.array([4, 1])
    uploads = failures.received(
        tree.take(state.server.psi, ids), tree.take(toys.POPULATION, ids), ids > 1
    )
    after = exchange.aggregate(server, *uploads)
    toys.same(tree.take(after.psi, 4), begin.server)
    toys.same(tree.take(after.psi, 1), tree.take(psi, 1))


@pytest.mark.exhaustive
def test_with_only_its_own_model_a_client_trains_alone():
    """Bit for bit, if FedAP begins without rounds of FedBN and all clients take part."""
    similarities, personal = toys.make("fedap", lam=1.0, warmup=0.0)(3)
    state = similarities.start(KEYS.init, toys.C, None, {})
    plan = toys.PLAN._replace(cohort=toys.C)
    state, _ = toys.player(similarities.method, plan=plan)(KEYS, 0, 1, state)
    state, _ = toys.player(personal.method, plan=plan)(KEYS, 1, 2, state)
    alone, _ = toys.player(toys.make("local"), plan=plan)(KEYS, 0, 3)
    own, _ = tree.split(tree.within(toys.NORM.batch_norms), alone.private)
    toys.same(state.private, own)
    toys.same(tree.join(state.private, state.server.psi), alone.private)
