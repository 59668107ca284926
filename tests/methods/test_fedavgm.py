"""Compares FedAvgM with FedAvg in a special case, and with plain NumPy."""

import naive
import pytest
import toys
from rounds import averaged_by_hand, rounds
from slow_cases import slow_but


@pytest.mark.parametrize("settings", slow_but([{}], [{}, {"nesterov": False}]))
def test_fedavgm_against_numpy(settings):
    method = toys.make("fedavgm", toys.TASK, beta=0.7, **settings)
    w, v = naive.first_weights(), [0.0] * 4
    for t in range(3):
        delta = naive.sub(w, averaged_by_hand(method, t, w))
        v = naive.add(delta, v, 0.7)
        w = naive.sub(w, v if settings else naive.add(delta, v, 0.7))
    naive.close(rounds(method, 3).server[0], w)
