"""Tests FedRS against NumPy."""

import naive
import numpy as np
import pytest
import toys
from rounds import rounds, skewed_rounds
from slow_cases import slow_but


@pytest.mark.parametrize("continuous", slow_but([False], [False, True]))
def test_fedrs_against_numpy(continuous):
    def gradient_of(i, w, x, y):
        n = naive.counts(i)
        scale = 0.7 * n / n.max() + 0.3 if continuous else np.where(n > 0, 1.0, 0.3)
        return naive.gradient(w, x, y, scale=scale)

    method = toys.make("fedrs", toys.TASK, alpha=0.3, continuous=continuous)
    expected = skewed_rounds(method, 2, gradient_of)
    naive.close(rounds(method, 2, federation=toys.SKEWED).server, expected)
