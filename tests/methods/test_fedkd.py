"""Compares FedKD with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from rounds import local_work
from scipy.special import log_softmax

from fedjax_lab import tree
from fedjax_lab.methods.fedkd import truncated


def kl(p, q):
    """The mean KL(p || q) of logits."""
    log_p, log_q = log_softmax(p, 1), log_softmax(q, 1)
    return (np.exp(log_p) * (log_p - log_q)).sum(1).mean()


@pytest.mark.slow
def test_against_numpy():
    method = toys.make("fedkd", toys.TASK)
    w, v = (toys.random_weights(toys.TASK.init(naive.KEYS.init), seed) for seed in (1, 2))
    W = np.asarray(toys.normal(3, 16, 16))
    private = v._replace(params={**v.params, "hidden": jnp.asarray(W)})
    _, kept, [(loss, weights, _)], batch = local_work(method, w, private)
    x, y = naive.data_of(0, toys.SKEWED)
    a, b = naive.weights_of(w), naive.weights_of(v)
    labels = naive.gradient(a, x, y)[0] + naive.gradient(b, x, y)[0]
    o_w, o_v = naive.logits(a, x), naive.logits(b, x)
    hidden = ((naive.features(b, x) - naive.features(a, x) @ W) ** 2).mean()
    expected = labels + (kl(o_v, o_w) + kl(o_w, o_v) + 2 * hidden) / labels
    value, _ = loss(weights, batch, jax.random.key(0))
    assert value == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(kept.params["hidden"], W + 0.125, rtol=1e-6)
    shared = method.round[0].aggregate(
        w, tree.repeat(v, 1), toys.POPULATION._replace(weight=jnp.ones(1))
    )
    change = jax.tree.map(lambda a: truncated(a, 0.95), optax.tree.sub(v.params, w.params))
    toys.close(shared.params, tree.add(w.params, change))


@pytest.mark.parametrize("energy, kept", [(0.0, 0), (0.6, 1), (0.85, 2), (0.99, 3), (1.0, 3)])
def test_truncation_keeps_the_first_singular_values_with_this_energy(energy, kept):
    """The squares 16, 4 and 1 have the shares 0.76, 0.95 and 1."""
    u, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 3)))
    v, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
    s = np.array([4.0, 2.0, 1.0])
    got = truncated(jnp.asarray((u * s @ v).reshape(2, 3, 3), jnp.float32), energy)
    np.testing.assert_allclose(got, (u[:, :kept] * s[:kept] @ v[:kept]).reshape(2, 3, 3), atol=1e-5)
