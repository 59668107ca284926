"""Compares FedAvgM with FedAvg in a special case, and with plain NumPy."""

import naive
import toys
from rounds import averaged_by_hand, rounds


def test_fedavgm_against_numpy():
    method = toys.make("fedavgm", toys.TASK, beta=0.7)
    w, v = naive.first_weights(), [0.0] * 4
    for t in range(3):
        v = naive.add(naive.sub(w, averaged_by_hand(method, t, w)), v, 0.7)
        w = naive.sub(w, v)
    naive.close(rounds(method, 3).server[0], w)
