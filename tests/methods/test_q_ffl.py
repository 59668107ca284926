"""Compares q-FFL with Algorithm 2 of its paper in plain NumPy."""

import naive
import numpy as np
import pytest
import toys
from rounds import rounds
from slow_cases import slow_but


@pytest.mark.parametrize("q", slow_but([2.0], [0.0, 2.0]))
def test_q_ffl_against_numpy(q):
    method = toys.make("q_ffl", toys.TASK, q=q)
    w, L = naive.first_weights(), 1 / naive.LR
    for t in range(3):
        above, below = [0.0] * 4, 0.0
        for i in naive.cohort(method, t):
            x, y = naive.data_of(i)
            F = naive.gradient(w, x, y)[0]
            delta = [L * a for a in naive.sub(w, naive.sgd(w, x, y))]
            norm = sum((a**2).sum() for a in delta)
            above = naive.add(above, delta, F**q)
            below += q * F ** (q - 1) * norm + L * F**q
        w = naive.add(w, above, -1 / below)
    naive.close(rounds(method, 3).server, w)
    assert np.isfinite(w[0]).all()
