"""Compares FedGC with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work

from fedjax_lab import tree
from fedjax_lab.methods.fedgc import regularizer
from fedjax_lab.simulation.population import make_population


def by_hand(W, s, has):
    """Reg, one embedding after another."""
    C, K, _ = W.shape
    total = 0.0
    for i in range(C):
        for c in range(K):
            own = np.exp(s[i, c] @ W[i, c])
            others = [
                np.exp(s[i, c] @ W[j, k])
                for j in range(C)
                for k in range(K)
                if has[j, k] and j != i and k != c
            ]
            total -= has[i, c] * np.log(own / (own + sum(others)))
    return total


@pytest.mark.slow
def test_the_regularizer_against_numpy():
    rng = np.random.default_rng(0)
    W, s = rng.normal(size=(2, 3, toys.K, 5))
    has = np.float32([[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 0, 1]])
    got = regularizer(*(jnp.asarray(a, jnp.float32) for a in (W, s, has)))
    assert got == pytest.approx(by_hand(W, s, has), rel=1e-4)


def test_local_work_and_predictions_are_about_the_clients_classes():
    method = toys.make("fedgc", toys.TASK)
    state = method.init(KEYS.init, toys.C)
    message = method.round[0].send(state.server, 0)
    (theta, W_i, has), _, [(loss, w, _)], batch = local_work(method, message)
    x, y = naive.data_of(0, toys.SKEWED)
    A, a, B, _ = naive.first_weights()
    classes = np.flatnonzero(naive.counts(0))
    assert 1 < len(classes) < toys.K
    np.testing.assert_array_equal(has, naive.counts(0) > 0)
    logits = np.maximum(x @ A + a, 0) @ B[:, classes]
    place = np.searchsorted(classes, y)
    expected = (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), place]).mean()
    assert loss(w, batch, jax.random.key(0))[0] == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(W_i, B.T + 0.125, rtol=1e-5)
    np.testing.assert_allclose(theta.params["Dense_0"]["bias"], a + 0.125, rtol=1e-6)
    client = tree.take(make_population(toys.SKEWED, toys.K), 0)
    got = method.predict(message, client, jnp.asarray(x)).argmax(-1)
    np.testing.assert_array_equal(got, classes[logits.argmax(1)])


@pytest.mark.slow
def test_the_server_steps_along_the_gradient_of_the_regularizer():
    method = toys.make("fedgc", toys.TASK, server_lr=0.2)
    server = method.init(KEYS.init, toys.C).server
    W = jnp.asarray(np.random.default_rng(1).normal(size=(2, toys.K, 16)), jnp.float32)
    has = jnp.array([[True, True, False, False], [False, True, True, False]])
    cohort = tree.take(toys.POPULATION, jnp.array([4, 2]))._replace(weight=jnp.array([0.5, 0.5]))
    after = method.round[0].aggregate(server, (tree.repeat(server.theta, 2), W, has), cohort)
    put = np.asarray(server.W, float)
    put[[4, 2]], full = W, np.zeros((toys.C, toys.K))
    full[[4, 2]] = has
    move = np.random.default_rng(2).normal(size=put.shape)
    step = 1e-5
    slope = (
        (by_hand(put + step * move, put, full) - by_hand(put - step * move, put, full)) / 2 / step
    )
    assert (np.asarray(after.W) - put).ravel() @ move.ravel() == pytest.approx(
        -0.2 * slope, rel=1e-2
    )
