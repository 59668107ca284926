"""Tests MOON against FedAvg and NumPy, and its projection."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from naive import KEYS
from rounds import by_hand, rounds

from fedjax_lab import losses, tree
from fedjax_lab.models.task import with_projection


def cosine_and_gradient(z, a):
    """Returns the cosine of each row, and its gradient with respect to z."""
    nz, na = (np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-8) for v in (z, a))
    cos = (z * a).sum(1, keepdims=True) / (nz * na)
    return cos, a / (nz * na) - cos * z / nz**2


@pytest.mark.slow
def test_moon_against_numpy():
    """Plays five rounds, so that clients return: the term needs an earlier local model."""
    mu, tau = 1.5, 0.5
    method = toys.make("moon", toys.TASK, mu=mu, tau=tau)
    last, returned = {}, []

    def train(i, w, x, y):
        def pull(z):
            if i not in last:
                return 0.0
            s_glob, d_glob = cosine_and_gradient(z, naive.features(w, x))
            s_prev, d_prev = cosine_and_gradient(z, naive.features(last[i], x))
            e_glob, e_prev = np.exp(s_glob / tau), np.exp(s_prev / tau)
            return mu * e_prev / (e_glob + e_prev) * (d_prev - d_glob) / tau / len(z)

        returned.append(i in last)
        last[i] = naive.descend(w, lambda v: naive.gradient(v, x, y, pull=pull)[1])
        return last[i]

    w, state = by_hand(method, 5, train), rounds(method, 5)
    assert sum(returned) > 2
    naive.close(state.server, w, rtol=1e-3, atol=1e-4)
    previous, has_previous = state.private
    assert sorted(np.flatnonzero(has_previous)) == sorted(last)
    for i, expected in last.items():
        naive.close(tree.take(previous, i), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_moon_runs_global_and_previous_models_in_evaluation_mode():
    """Their running statistics change the result, which they would not in training mode."""
    method = toys.make("moon", mu=5.0)
    play = toys.player(method)
    state, _ = play(KEYS, 0, 3)

    def moved(w):
        return w._replace(stats=jax.tree.map(lambda a: a + 3.0, w.stats))

    previous, has_previous = state.private
    plain = play(KEYS, 3, 1, state)[0].server.params
    for other in (
        state._replace(server=moved(state.server)),
        state._replace(private=(moved(previous), has_previous)),
    ):
        difference = optax.tree.sub(play(KEYS, 3, 1, other)[0].server.params, plain)
        assert float(tree.sq_norm(difference)) > 1e-8


def test_cosine_is_finite_at_zero():
    a, b = jnp.zeros((2, 3)), jnp.array([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(losses.cosine(b, 2 * b), [1.0, 0.0], rtol=1e-6)
    grads = jax.jit(jax.grad(lambda z: losses.cosine(z, b).sum()))(a)
    assert np.isfinite(grads).all() and (losses.cosine(a, b) == 0).all()


def test_the_projection_against_numpy():
    task = with_projection(toys.TASK, 5)
    w = task.init(jax.random.key(1))
    x, _ = naive.data_of(0)
    p = jax.tree.map(np.asarray, w.params)
    h = np.maximum(x @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"], 0)
    z = np.maximum(h @ p["projection_0"]["kernel"] + p["projection_0"]["bias"], 0)
    z = z @ p["projection_1"]["kernel"] + p["projection_1"]["bias"]
    out = task.apply(w, x, jax.random.key(2), np.ones(len(x)))
    np.testing.assert_allclose(out.features, z, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        out.logits, z @ p["head"]["kernel"] + p["head"]["bias"], rtol=1e-4, atol=1e-5
    )
