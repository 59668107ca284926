"""Compares PFL-DA with plain NumPy."""

import jax
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work

KEY = jax.random.key(0)


def test_against_numpy():
    method = toys.make("pfl_da", toys.TASK, lam=0.7)
    phi = method.init(KEYS.init, toys.C).server
    own = toys.random_weights(toys.TASK.init(KEYS.init), 1)
    upload, kept, [near, shared], batch = local_work(method, phi, own)
    x, y = naive.data_of(0, toys.SKEWED)
    w, first = naive.weights_of(own), naive.first_weights()
    away = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(w[2:], first[2:], strict=True)))
    expected = naive.gradient(w, x, y)[0] + 0.7 * away
    assert near.loss(near.weights, batch, KEY)[0] == pytest.approx(expected, rel=1e-4)
    assert near.options["only"]("params/head/bias") and not near.options["only"](
        "params/Dense_0/bias"
    )
    moved = [a + 0.125 for a in w]
    naive.close(shared.weights, moved[:2] + first[2:])
    naive.close(kept, [a + 0.125 for a in moved[:2]] + moved[2:])
    np.testing.assert_allclose(upload.params["head"]["bias"], first[3] + 0.125, rtol=1e-6)
    assert upload.params["Dense_0"]["bias"] is None
