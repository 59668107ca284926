"""FedAvg and FedProx against naive NumPy."""

import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import by_hand

from fedjax_lab.simulation import simulate


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_two_rounds_against_numpy(mu):
    """FedAvg and FedProx with three of eight unequal clients per round."""
    method = toys.make("fedprox", toys.TASK, mu=mu)

    def train(i, w, x, y):
        return naive.sgd(w, x, y, lambda v: [mu * a for a in naive.sub(v, w)])

    state, sums = toys.player(method, plan=naive.FULL)(KEYS, 0, 2)
    naive.close(state.server, by_hand(method, 2, train))
    assert float(sums.steps) == 2 * 3 * naive.STEPS


def test_the_training_loss_is_the_mean_over_the_cohort_weighted_by_size():
    """Each client makes one full-batch step, whose loss is that of the sent model."""
    method = toys.make("fedavg", toys.TASK)
    w = naive.weights_of(simulate.init(method, KEYS, toys.C).server)
    ids = naive.cohort(method, 0)
    n = np.array([len(naive.data_of(i)[1]) for i in ids])
    expected = np.average([naive.gradient(w, *naive.data_of(i))[0] for i in ids], weights=n)
    _, sums = toys.player(method, plan=naive.FULL._replace(epochs=1))(KEYS, 0, 1)
    assert float(sums.train_loss) == pytest.approx(expected, rel=1e-5)
    assert float(sums.examples) == n.sum()
