"""Compares elastic aggregation with FedAvg in a special case, and with plain NumPy."""

import jax
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import averaged_by_hand, rounds

from fedjax_lab.simulation import simulate


@pytest.mark.exhaustive
def test_zero_sensitivities_and_tau_0_give_fedavg():
    """With a head of zeros, the squared norm of the logits has the gradient 0."""

    def play(name, **settings):
        method = toys.make(name, **settings)
        state = simulate.init(method, KEYS, toys.C)
        w = state.server
        head = jax.tree.map(lambda a: 0 * a, w.params["head"])
        state = state._replace(server=w._replace(params={**w.params, "head": head}))
        return toys.player(method)(KEYS, 0, 1, state)

    toys.same(play("elastic", tau=0.0), play("fedavg"))


def sensitivity(w, x):
    """|grad| of the mean of ||logits||^2."""
    return [np.abs(a) for a in naive.backward(w, x, 2 * naive.logits(w, x) / len(x))]


def test_elastic_against_numpy():
    method = toys.make("elastic", toys.TASK, tau=0.3)
    w = naive.first_weights()
    for t in range(3):
        ids = naive.cohort(method, t)
        omega = naive.mean_by_size(ids, [sensitivity(w, naive.data_of(i)[0]) for i in ids])
        moved = naive.sub(averaged_by_hand(method, t, w), w)
        zeta = [1.3 - a / a.max() for a in omega]
        w = naive.add(w, [a * b for a, b in zip(zeta, moved, strict=True)])
    naive.close(rounds(method, 3).server, w)
