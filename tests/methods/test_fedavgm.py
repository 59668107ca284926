"""Compares FedAvgM with FedAvg in a special case, and with plain NumPy."""

import naive
import pytest
import toys
from rounds import averaged, averaged_by_hand, rounds

KEYS = naive.KEYS


@pytest.mark.slow
def test_fedavgm_without_momentum_is_fedavg():
    state, _ = toys.player(toys.make("fedavgm", beta=0.0))(KEYS, 0, 3)
    toys.close(state.server[0], averaged()[0].server, rtol=1e-5, atol=1e-6)


def test_fedavgm_against_numpy():
    method = toys.make("fedavgm", toys.TASK, beta=0.7)
    w, v = naive.first_weights(), [0.0] * 4
    for t in range(3):
        v = naive.add(naive.sub(w, averaged_by_hand(method, t, w)), v, 0.7)
        w = naive.sub(w, v)
    naive.close(rounds(method, 3).server[0], w)
