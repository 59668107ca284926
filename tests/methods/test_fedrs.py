"""Tests FedRS against NumPy."""

import flax.linen as nn
import naive
import numpy as np
import pytest
import toys
from rounds import rounds, skewed_rounds

from fedjax_lab import optim, simulate
from fedjax_lab.models.task import make_task

KEYS = naive.KEYS


@pytest.mark.parametrize("continuous", [False, True])
def test_fedrs_against_numpy(continuous):
    def gradient_of(i, w, x, y):
        n = naive.counts(i)
        scale = 0.7 * n / n.max() + 0.3 if continuous else np.where(n > 0, 1.0, 0.3)
        return naive.gradient(w, x, y, scale=scale)

    method = toys.make("fedrs", toys.TASK, alpha=0.3, continuous=continuous)
    expected = skewed_rounds(method, 2, gradient_of)
    naive.close(rounds(method, 2, federation=toys.SKEWED).server, expected)


class NoBias(nn.Module):
    """A linear model whose head has no bias, as in FedRS's code."""

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        return nn.Dense(toys.K, use_bias=False, name="head")(x), x


@pytest.mark.exhaustive
def test_fedrs_without_a_bias_against_numpy():
    task = make_task(NoBias(), (toys.D,), toys.K)
    method = toys.make("fedrs", task, alpha=0.3)
    w = np.asarray(simulate.init(method, KEYS, toys.C).server.params["head"]["kernel"])
    ids, models = naive.cohort(method, 0), []
    for i in ids:
        x, y = naive.data_of(i, toys.SKEWED)
        scale = np.where(naive.counts(i) > 0, 1.0, 0.3)
        p = np.exp(scale * (x @ w))
        p = p / p.sum(1, keepdims=True)
        models.append(w - 0.1 * x.T @ ((p - np.eye(toys.K)[y]) / len(y) * scale))
    plan = naive.FULL._replace(epochs=1, optimizer=optim.sgd(0.1))
    state = rounds(method, 1, plan, toys.SKEWED)
    expected = np.tensordot(naive.shares(ids, toys.SKEWED), np.stack(models), 1)
    np.testing.assert_allclose(
        state.server.params["head"]["kernel"], expected, rtol=1e-4, atol=1e-5
    )
