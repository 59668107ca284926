"""Compares FedNova with plain NumPy, and its running statistics with FedAvg's."""

import naive
import numpy as np
import optax
import pytest
import toys
from naive import KEYS
from rounds import rounds

from fedjax_lab import optim, tree


@pytest.mark.exhaustive
def test_running_statistics_are_averaged_by_size_also_with_unequal_steps():
    one, other = (toys.player(toys.make(name))(KEYS, 0, 1)[0] for name in ("fednova", "fedavg"))
    toys.close(one.server.stats, other.server.stats, rtol=1e-6)
    assert float(tree.sq_norm(optax.tree.sub(one.server.params, other.server.params))) > 1e-4


def test_fednova_against_numpy():
    """Clients have different numbers of batches; FedAvg gives the model that each one trains."""
    plan = naive.FULL._replace(batch_size=10, epochs=2, optimizer=optim.sgd(0.1, 0.9))
    method, plain = toys.make("fednova", toys.TASK), toys.make("fedavg", toys.TASK)
    w = naive.first_weights()
    ids = naive.cohort(method, 0)
    n = np.array([len(naive.data_of(i)[1]) for i in ids])
    tau = 2 * -(-n // 10)
    assert len(set(tau)) > 1
    p, a = n / n.sum(), (tau - 0.9 * (1 - 0.9**tau) / 0.1) / 0.1
    # A client's model is that of FedAvg if the other clients have no examples.
    models = []
    for i in ids:
        alone = np.asarray(toys.FEDERATION.train).copy()
        alone[[j for j in ids if j != i]] = -1
        federation = toys.FEDERATION._replace(train=toys.as_rows(alone))
        models.append(naive.weights_of(rounds(plain, 1, plan, federation).server))
    d = [[x / ai for x in naive.sub(w, m)] for m, ai in zip(models, a, strict=True)]
    expected = naive.add(w, naive.mean(p, d), -float(p @ a))
    naive.close(rounds(method, 1, plan).server, expected)
