"""Compares Floco with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work

from fedjax_lab import streams, tree
from fedjax_lab.methods import floco

KEY = jax.random.key(4)
ROWS = np.random.default_rng(0).normal(size=(6, 9)).astype(np.float32)


def nearest(kappa):
    """The point of the simplex that is nearest to kappa [M]."""
    u = np.sort(kappa)[::-1]
    theta = (np.cumsum(u) - 1) / np.arange(1, len(u) + 1)
    return np.maximum(kappa - theta[(u > theta).sum() - 1], 0)


def test_principal_components():
    """Six rows have only five components."""
    U, s, _ = np.linalg.svd(ROWS - ROWS.mean(0), full_matrices=False)
    expected = (U * s)[:, :3]
    expected *= np.sign(expected[np.abs(expected).argmax(0), np.arange(3)])
    np.testing.assert_allclose(floco.components(ROWS, 3), expected, rtol=1e-3, atol=1e-4)
    assert not np.any(floco.components(ROWS, 8)[:, 5:])


def test_clients_get_the_points_of_the_lowest_energy():
    kappa, energies = 0.1 * ROWS[:5, :4], []
    for z in np.geomspace(1e-4, 1, 100):
        alpha = np.stack([nearest(row / z) for row in kappa])
        np.testing.assert_allclose(alpha.sum(1), 1, rtol=1e-5)
        apart = np.linalg.norm(alpha[:, None] - alpha, axis=-1)[np.triu_indices(5, 1)]
        energies.append(((np.maximum(apart, 1e-4) ** -2).sum(), alpha))
    lowest, alpha = min(energies, key=lambda pair: pair[0])
    assert lowest < energies[-1][0]
    np.testing.assert_allclose(floco.assigned(jnp.asarray(kappa)), alpha, rtol=1e-3, atol=1e-4)


def test_draws_stay_in_their_regions():
    center, keys = jnp.array([0.2, 0.3, 0.5]), jax.random.split(KEY, 500)
    simplex = jax.vmap(floco.draw_simplex, (0, None))(keys, center)
    np.testing.assert_allclose(simplex.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(simplex.mean(0), 1 / 3, atol=0.05)
    away = np.abs(jax.vmap(floco.draw_subregion, (None, 0, None))(0.4, keys, center) - center).sum(
        1
    )
    assert 0.35 < away.max() < 0.4 and away.min() < 0.05


@pytest.mark.slow
def test_against_numpy():
    """The loss of a step in each stage, and the subregions of stage 2."""
    simplex, assign, around = toys.make("floco", toys.TASK, endpoints=3, rho=0.2, tau=0.5)(6)
    assert [stage.rounds for stage in (simplex, assign, around)] == [2, 1, 3]
    server = simplex.start(KEYS.init, toys.C, None, {}).server
    (exchange,) = assign.method.round
    theta = np.asarray(server.w.params["head"]["kernel"])  # [3, D, K]
    moved = tree.repeat(server.w, toys.C)
    kernels = np.random.default_rng(1).normal(size=(toys.C, *theta.shape)).astype(np.float32)
    moved.params["head"]["kernel"] = jnp.asarray(kernels)
    after = exchange.aggregate(server, moved, toys.POPULATION)
    expected = floco.assigned(floco.components(kernels.reshape(toys.C, -1), 3))
    np.testing.assert_allclose(after.alpha, expected, rtol=1e-5)
    mean = np.tensordot(np.asarray(toys.POPULATION.weight), kernels, 1)
    np.testing.assert_allclose(after.w.params["head"]["kernel"], mean, rtol=1e-4, atol=1e-6)
    x, y = naive.data_of(2, toys.SKEWED)
    for stage, state, draw in (
        (simplex, server, lambda key, alpha: floco.draw_simplex(key, alpha)),
        (around, server._replace(alpha=after.alpha), lambda *of: floco.draw_subregion(0.2, *of)),
    ):
        sent = exchange.send(state, 2)
        _, _, [(loss, start, _)], batch = local_work(stage.method, sent, (), 2)
        alpha = np.asarray(draw(streams.extra(KEY), state.alpha[2]))
        w = naive.weights_of(start)
        w[2] = np.tensordot(alpha, theta, 1)
        value, _ = naive.gradient(w, x, y)
        assert loss(start, batch, KEY)[0] == pytest.approx(value, rel=1e-4)
        client = tree.take(toys.POPULATION, 2)
        w[2] = np.tensordot(np.asarray(sent.alpha), theta, 1)
        np.testing.assert_allclose(
            stage.method.predict(sent, client, jnp.asarray(x)), naive.logits(w, x), rtol=1e-3
        )
