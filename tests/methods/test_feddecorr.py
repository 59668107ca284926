"""Compares FedDecorr with FedAvg in a special case, and with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from rounds import by_hand, rounds

from fedjax_lab.methods.feddecorr import correlations


def test_correlations_leave_out_padding_and_constant_features():
    h = np.array(toys.normal(0, 9, 5))
    h[:, 3] = 2.0
    mask = (np.arange(9) < 7).astype(np.float32)
    K = np.array(jax.jit(correlations)(h, mask))
    assert not K[3].any() and not K[:, 3].any()
    others = np.delete(np.arange(5), 3)
    expected = np.corrcoef(h[:7, others].T)
    np.testing.assert_allclose(K[np.ix_(others, others)], expected, rtol=1e-4, atol=1e-5)
    alone = jnp.asarray(np.arange(9) < 1, jnp.float32)
    gradient = jax.jit(jax.grad(lambda h: jnp.sum(correlations(h, alone) ** 2)))(h)
    assert not np.asarray(gradient).any()


def decorrelation(z):
    """The gradient with respect to z of the mean squared correlation of its columns."""
    d, n = z.shape[1], len(z)
    s = np.sqrt(z.var(0) + 1e-8)
    u = (z - z.mean(0)) / s
    K = u.T @ u / n
    du = 4 * u @ K / (n * d * d)
    dx = (du - u * (du * u).mean(0)) / s  # through the scale, then through the mean
    return dx - dx.mean(0)


@pytest.mark.slow
def test_feddecorr_against_numpy():
    method = toys.make("feddecorr", toys.TASK, beta=5.0)

    def train(i, w, x, y):
        def gradient_of(v):
            return naive.gradient(v, x, y, pull=lambda z: 5.0 * decorrelation(z))[1]

        return naive.descend(w, gradient_of)

    naive.close(rounds(method, 3).server, by_hand(method, 3, train), rtol=1e-3, atol=1e-4)
