"""Compares FedAH with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work

from fedjax_lab import tree

KEY = jax.random.key(0)


@pytest.mark.slow
def test_against_numpy():
    """W_i starts from the client's, is trained by clipped steps, and mixes the heads; then the head
    and the body are trained."""
    method = toys.make("fedah", toys.TASK, eta=20.0)
    w_t = method.init(KEYS.init, toys.C).server
    h_i = toys.random_weights(w_t, 1).params["head"]
    W = jax.tree.map(lambda a: jnp.full_like(a, 0.5), h_i)
    upload, (kept, W_i), calls, batch = local_work(method, w_t, (h_i, W), moved=0.25)
    learning, head, body = calls
    own, first = ([p[n] for n in ("kernel", "bias")] for p in (h_i, w_t.params["head"]))
    mixed = lambda c: [np.asarray(a + (b - a) * c) for a, b in zip(own, first, strict=True)]  # noqa: E731
    w, (x, y) = naive.first_weights(), naive.data_of(0, toys.SKEWED)
    _, g = naive.gradient(w[:2] + mixed(0.5), x, y)
    slope = jax.grad(lambda v: learning.loss(v, batch, KEY)[0])(learning.weights).params
    step, _ = learning.options["optimizer"].update(slope, (), learning.weights.params)
    for name, k in (("kernel", 0), ("bias", 1)):
        expected = np.clip(0.5 - 20.0 * g[2 + k] * (first[k] - own[k]), 0, 1)
        np.testing.assert_allclose(0.5 + step[name], expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(W_i[name], 0.75)
    naive.close(head.weights, w[:2] + mixed(0.75))
    assert head.options["only"]("params/head/bias") and not body.options["only"]("params/head/bias")
    naive.close(upload, [a + 0.5 for a in w[:2] + mixed(0.75)])
    toys.close(kept, upload.params["head"])
    client = tree.take(toys.POPULATION, 0)._replace(private=(h_i, W))
    expected = naive.logits(w[:2] + own, x)
    np.testing.assert_allclose(method.predict(w_t, client, batch.x), expected, rtol=1e-4, atol=1e-5)


def test_a_client_predicts_with_the_body_of_the_server_and_its_head():
    method, shapes = toys.make("fedah", toys.TASK), jax.eval_shape(toys.TASK.init, KEYS.init)
    w_t, w_i = (toys.random_weights(shapes, seed) for seed in (1, 2))
    client = tree.take(toys.POPULATION, 0)._replace(private=(w_i.params["head"], None))
    x, _ = naive.data_of(0)
    expected = naive.logits(naive.weights_of(w_t)[:2] + naive.weights_of(w_i)[2:], x)
    got = jax.jit(method.predict)(w_t, client, x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
