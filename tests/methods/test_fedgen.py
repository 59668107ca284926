"""Compares FedGen with plain NumPy; random draws are those of the package."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work
from scipy.special import log_softmax

from fedjax_lab import streams, tree
from fedjax_lab.methods import fedgen

KEY, P = jax.random.key(4), np.float32([0.5, 0.25, 0.25, 0])
W = toys.TASK.init(KEYS.init)


def generated(G, count, key):
    """Features z [B, D] and their classes, the noise, by the formulas."""
    k_y, k_eps = jax.random.split(key)
    y = np.asarray(jax.random.categorical(k_y, jnp.log(P), shape=(count,)))
    eps = np.asarray(jax.random.uniform(k_eps, (count, 32)))
    h = np.concatenate([eps, np.eye(toys.K)[y]], 1) @ G["hidden"]["kernel"] + G["hidden"]["bias"]
    return np.maximum(h, 0) @ G["out"]["kernel"] + G["out"]["bias"], y, eps


def entropy(z, y):
    """The mean cross-entropy of the first head on features."""
    *_, B, b = naive.weights_of(W)
    return -log_softmax(z @ B + b, 1)[np.arange(len(y)), y].mean()


@pytest.mark.parametrize("p", [P, 0 * P])
def test_eq_4_against_numpy(p):
    """Without classes, before the first round, nothing is generated."""
    method = toys.make("fedgen", toys.TASK, alpha=3.0)
    G = jax.tree.map(np.asarray, method.init(KEYS.init, toys.C).server.G)
    (_, count), _, [(loss, weights, _)], batch = local_work(method, (W, G, jnp.asarray(p)))
    x, y = naive.data_of(0, toys.SKEWED)
    expected = naive.gradient(naive.weights_of(W), x, y)[0]
    if p.any():
        z, classes, _ = generated(G, len(y), streams.extra(KEY))
        expected += 3 * entropy(z, classes)
    assert loss(weights, batch, KEY)[0] == pytest.approx(expected, rel=1e-4)
    np.testing.assert_array_equal(count, naive.counts(0))


@pytest.mark.slow
def test_eq_3_against_numpy():
    method = toys.make("fedgen", toys.TASK)
    G = jax.tree.map(np.asarray, method.init(KEYS.init, toys.C).server.G)
    z, y, eps = generated(G, fedgen.BATCH, KEY)
    far = np.abs(z[:, None] - z).mean(-1) * ((eps[:, None] - eps) ** 2).mean(-1)
    expected = entropy(z, y) + 2 * np.exp(-far.mean())
    got = fedgen.generator_loss(W.params["head"], jnp.asarray(P), 2.0, 32, G, KEY)
    assert got == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_server_trains_the_generator_for_the_classes_of_the_round():
    method = toys.make("fedgen", toys.TASK, server_steps=2, hidden=8)
    server = method.init(KEYS.init, toys.C).server
    counts = jnp.float32([[4, 0, 0, 0], [0, 2, 2, 0]])
    cohort = tree.take(toys.POPULATION, jnp.arange(2))
    cohort = cohort._replace(weight=jnp.array([0.5, 0.5]), key=jax.random.split(KEY, 2))
    after = method.round[0].aggregate(server, (tree.repeat(W, 2), counts), cohort)
    toys.close(after.w, W)
    np.testing.assert_allclose(after.p, [0.5, 0.25, 0.25, 0])
    last = cohort.key[0]
    losses = [
        np.mean(
            [
                fedgen.generator_loss(
                    W.params["head"], after.p, 1.0, 32, s.G, jax.random.fold_in(last, k)
                )
                for k in range(3)
            ]
        )
        for s in (server, after)
    ]
    assert losses[1] < losses[0]
