"""Compares FedGMA with plain NumPy, and with FedAvg in a special case."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from slow_cases import in_ci

from fedjax_lab import tree
from fedjax_lab.types import Weights


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("tau", in_ci([0.3], [0.3, 1.0]))
@pytest.mark.parametrize("mode", ["masked_average", "average_plus_masked_step"])
def test_fedgma_against_numpy(weights, tau, mode):
    """Running statistics are averaged by size, without mask and learning rate of the server."""
    step = np.array([[1.0, 1, 1, 0, 2], [1, 1, -1, 0, -2], [1, -1, -1, 1, 0], [1, -1, 1, 1, 0]])
    n = np.array([10.0, 20, 30, 50])  # weighted by size, no vote is a tie decided by rounding
    method = toys.make("fedgma", tau=tau, server_lr=0.7, mode=mode, weights=weights)
    w_t = np.arange(5.0)
    p = np.full(4, 1 / 4) if weights == "uniform" else n / n.sum()
    votes = p @ np.sign(step)
    A, agree = np.abs(votes), np.abs(votes) >= tau - 1e-6
    if mode == "masked_average":
        expected = w_t + 0.7 * np.where(agree, 1, A) * (n / n.sum() @ step)
    else:
        kept = np.where(agree & (np.sign(step) == np.sign(votes)), step, 0)
        expected = p @ (w_t + step) + 0.7 * p @ kept
    cohort = tree.take(toys.POPULATION, jnp.arange(4))._replace(n=jnp.asarray(n))
    uploads = Weights({"w": jnp.asarray(w_t + step)}, {"mean": jnp.asarray(step)})
    sent = Weights({"w": jnp.asarray(w_t)}, {"mean": jnp.full(5, 9.0)})
    new = jax.jit(method.round[0].aggregate)(sent, uploads, cohort)
    np.testing.assert_allclose(new.params["w"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new.stats["mean"], n / n.sum() @ step, rtol=1e-5, atol=1e-6)
