"""Tests FedSAM against FedAvg and NumPy."""

import naive
import numpy as np
import toys
from rounds import by_hand, rounds


def test_fedsam_against_numpy():
    rho = 0.3
    method = toys.make("fedsam", toys.TASK, rho=rho)

    def train(i, w, x, y):
        def gradient_of(v):
            _, g = naive.gradient(v, x, y)
            norm = np.sqrt(sum((a * a).sum() for a in g))
            return naive.gradient(naive.add(v, g, rho / norm), x, y)[1]

        return naive.descend(w, gradient_of)

    naive.close(rounds(method, 3).server, by_hand(method, 3, train))
