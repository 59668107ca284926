"""Compares FedCP with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work

from fedjax_lab import streams, tree

KEY = jax.random.key(4)


def selected(policy, context, noise=0.0):
    """r by the formula: the softmax of two numbers for each feature."""
    a = context @ policy["W"]["kernel"] + policy["W"]["bias"]
    a = (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5)
    a = np.maximum(a * policy["norm"]["scale"] + policy["norm"]["shift"], 0)
    return 1 / (1 + np.exp(-(a[:, :16] - a[:, 16:] + noise)))


def discrepancy(a, b):
    """The mean of the kernels within a and within b, minus twice that between them."""

    def kernel(a, b):
        squared = ((a[:, None] - b) ** 2).sum(-1)
        return sum(np.exp(-0.5 * squared / width) for width in (10, 15, 20, 50)).mean()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


@pytest.mark.slow
def test_against_numpy():
    method = toys.make("fedcp", toys.TASK, lam=2.0)
    server = method.init(KEYS.init, toys.C).server
    g_i = toys.random_weights(toys.TASK.init(KEYS.init), 1).params["head"]
    upload, kept, [(loss, start, _)], batch = local_work(method, server, g_i)
    moved = start._replace(params=jax.tree.map(lambda a: a + 0.125, start.params))
    w, p = naive.weights_of(moved), jax.tree.map(np.asarray, moved.params)
    x, y = naive.data_of(0, toys.SKEWED)
    h, first = naive.features(w, x), naive.features(naive.weights_of(server), x)
    v = np.asarray(g_i["kernel"]).sum(1)
    v = v / np.linalg.norm(v)
    noise = np.asarray(jax.random.logistic(streams.extra(KEY), h.shape))
    r = selected(p["policy"], h * v, noise)
    *_, B, b = naive.weights_of(server)
    logits = (r * h) @ w[2] + w[3] + ((1 - r) * h) @ B + b
    entropy = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
    expected = entropy.mean() + 2 * discrepancy(h, first)
    assert loss(moved, batch, KEY)[0] == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(kept["kernel"], g_i["kernel"] + 0.125, rtol=1e-6)
    np.testing.assert_allclose(
        upload.params["head"]["bias"], (b + g_i["bias"] + 0.125) / 2, rtol=1e-5
    )


def test_a_client_predicts_with_both_heads_and_no_noise():
    method = toys.make("fedcp", toys.TASK)
    server = method.init(KEYS.init, toys.C).server
    g_i = toys.random_weights(toys.TASK.init(KEYS.init), 1).params["head"]
    client = tree.take(toys.POPULATION, 0)._replace(private=g_i)
    x = np.asarray(toys.FEDERATION.x[:9])
    w, (B_i, b_i) = naive.weights_of(server), (np.asarray(g_i[n]) for n in ("kernel", "bias"))
    h, v = naive.features(w, x), B_i.sum(1) / np.linalg.norm(B_i.sum(1))
    r = selected(jax.tree.map(np.asarray, server.params["policy"]), h * v)
    expected = (r * h) @ B_i + b_i + ((1 - r) * h) @ w[2] + w[3]
    np.testing.assert_allclose(
        method.predict(server, client, jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5
    )
