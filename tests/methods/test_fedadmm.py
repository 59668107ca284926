"""Compares FedADMM with plain NumPy."""

import naive
import numpy as np
import toys
from rounds import PLAIN, rounds

from fedjax_lab import tree
from fedjax_lab.types import Weights


def test_fedadmm_against_numpy():
    rho, server_lr = 0.2, 0.7
    method = toys.make("fedadmm", toys.TASK, rho=rho, server_lr=server_lr)
    theta = naive.first_weights()
    w = {i: theta for i in range(toys.C)}
    y = {i: [np.zeros_like(a) for a in theta] for i in range(toys.C)}
    for t in range(3):
        ids, changes = naive.cohort(method, t), []
        for i in ids:

            def pull(v, i=i, theta=theta):
                return naive.add(y[i], naive.sub(v, theta), rho)

            new = naive.sgd(theta, *naive.data_of(i), pull, momentum=0.0)
            dual = naive.add(y[i], naive.sub(new, theta), rho)
            before = naive.add(w[i], y[i], 1 / rho)
            changes.append(naive.sub(naive.add(new, dual, 1 / rho), before))
            w[i], y[i] = new, dual
        theta = naive.add(theta, naive.mean(np.full(len(ids), 1 / toys.C), changes), server_lr)
    state = rounds(method, 3, PLAIN)
    naive.close(state.server, theta)
    for i in range(toys.C):
        kept = tree.take(state.private, i)
        naive.close(Weights(kept[0], {}), w[i])
        naive.close(Weights(kept[1], {}), y[i])
