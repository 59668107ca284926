"""Compares AFL with plain NumPy."""

import naive
import numpy as np
import pytest
import toys
from rounds import rounds
from slow_cases import slow_but


def projected(v):
    """The point of the simplex that is closest to v, found by bisection."""
    low, high = v.min() - 1, v.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


@pytest.mark.parametrize("rate", slow_but([0.3], [0.0, 0.3]))
def test_afl_against_numpy(rate):
    method = toys.make("afl", toys.TASK, lambda_lr=rate)
    w, weights = naive.first_weights(), np.full(toys.C, 1 / toys.C)
    for t in range(4):
        ids = naive.cohort(method, t)
        each = [naive.data_of(i) for i in ids]
        risks = [naive.gradient(w, x, y)[0] for x, y in each]
        share = weights[ids] / weights[ids].sum() if weights[ids].sum() else np.ones(len(ids)) / 3
        w = naive.mean(share, [naive.sgd(w, x, y) for x, y in each])
        weights[ids] += rate * np.array(risks)
        weights = projected(weights)
    model, actual = rounds(method, 4).server
    naive.close(model, w)
    np.testing.assert_allclose(actual, weights, atol=1e-5)
    assert (np.ptp(weights) > 0.1) == (rate > 0)
