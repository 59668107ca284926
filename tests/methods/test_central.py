"""Central training equals the training of one client with the examples of all clients."""

import naive
import numpy as np
import pytest
import toys
from naive import KEYS


@pytest.mark.slow
def test_central_training_is_one_client_with_all_examples():
    method = toys.make("central", toys.TASK)
    federation, population, plan = toys.pooled(method)
    plan = naive.FULL._replace(batch_size=federation.train.shape[1], cohort=1)
    state, _ = toys.player(method, plan=plan)(KEYS, 0, 1)
    rows = np.asarray(toys.FEDERATION.train)
    rows = rows[rows >= 0]
    assert float(population.n[0]) == len(rows)
    x, y = np.asarray(toys.FEDERATION.x)[rows], np.asarray(toys.FEDERATION.y)[rows]
    first = naive.first_weights()
    naive.close(state.server, naive.sgd(first, x, y))


def test_one_client_has_the_examples_of_all():
    federation, population, plan = toys.pooled(toys.make("central", toys.TASK))
    rows = [np.asarray(of.train)[np.asarray(of.train) >= 0] for of in (federation, toys.FEDERATION)]
    np.testing.assert_array_equal(*map(np.sort, rows))
    assert population.n.tolist() == [len(rows[0])] and plan.cohort == 1
