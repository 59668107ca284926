"""Compares FedCM with FedAvg in a special case, and with plain NumPy."""

import naive
import numpy as np
import toys
from rounds import PLAIN, rounds

from fedjax_lab.types import Weights


def test_fedcm_against_numpy():
    alpha, server_lr = 0.3, 0.8
    method = toys.make("fedcm", toys.TASK, alpha=alpha, server_lr=server_lr)
    w = naive.first_weights()
    delta = [np.zeros_like(a) for a in w]
    for t in range(3):
        ids, models = naive.cohort(method, t), []
        for i in ids:
            x, y = naive.data_of(i)

            def gradient_of(v, x=x, y=y, delta=delta):
                _, g = naive.gradient(v, x, y)
                return [alpha * a + (1 - alpha) * b for a, b in zip(g, delta, strict=True)]

            models.append(naive.descend(w, gradient_of, momentum=0.0))
        back = naive.sub(w, naive.mean_by_size(ids, models))
        delta = [a / (naive.STEPS * naive.LR) for a in back]
        w = naive.add(w, back, -server_lr)
    state = rounds(method, 3, PLAIN)
    naive.close(state.server[0], w)
    naive.close(Weights(state.server[1], {}), delta, atol=1e-4)
