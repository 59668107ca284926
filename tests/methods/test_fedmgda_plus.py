"""Compares FedMGDA+ with Algorithm 1 of its paper in NumPy, and its weights with SciPy's."""

import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from inputs import complaint
from rounds import rounds
from scipy.optimize import minimize

from fedjax_lab.methods.fedmgda_plus import common_descent


def least(gram, low, high):
    """The weights with the least norm of the sum, by sequential quadratic programming."""
    return minimize(
        lambda v: v @ gram @ v,
        (low + high) / 2,
        jac=lambda v: 2 * gram @ v,
        bounds=list(zip(low, high, strict=True)),
        constraints={"type": "eq", "fun": lambda v: v.sum() - 1},
        options={"ftol": 1e-14},
    ).x


@pytest.mark.parametrize("m, eps", [(3, 0.1), (6, 1.0), (20, 0.03)])
def test_the_weights_of_the_common_direction(m, eps):
    rng = np.random.default_rng(m)
    g = rng.normal(size=(m, 7)) + 0.7 * rng.normal(size=7)
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    share = 1 / (m - 1)
    low, high = np.full(m, max(share - eps, 0)), np.full(m, min(share + eps, 1))
    high[0] = low[0] = 0  # its upload was lost
    weights = common_descent(*map(jnp.float32, (g @ g.T, low, high)))
    np.testing.assert_allclose(weights, least(g @ g.T, low, high), atol=1e-4)
    assert weights[0] == 0 and float(jnp.sum(weights)) == pytest.approx(1)


@pytest.mark.slow
def test_fedmgda_plus_against_numpy():
    method = toys.make("fedmgda_plus", toys.TASK, eps=0.2, server_lr=0.5)
    w, distances = naive.first_weights(), []
    for t in range(3):
        moves = [naive.sub(w, naive.sgd(w, *naive.data_of(i))) for i in naive.cohort(method, t)]
        g = [[a / np.linalg.norm(naive.vector(move)) for a in move] for move in moves]
        flat = np.stack([naive.vector(each) for each in g])
        share = least(flat @ flat.T, np.full(3, 1 / 3 - 0.2), np.full(3, 1 / 3 + 0.2))
        distances.append(np.ptp(share))
        w = naive.add(w, naive.mean(share, g), -0.5)
    naive.close(rounds(method, 3).server, w, atol=1e-4)
    assert max(distances) > 0.1


def test_bad_settings_are_rejected():
    assert "from 0 to 1" in complaint(toys.make, "fedmgda_plus", eps=1.5)
