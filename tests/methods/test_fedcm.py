"""Compares FedCM with FedAvg in a special case, and with plain NumPy."""

import naive
import numpy as np
import pytest
import toys
from rounds import PLAIN, rounds

from fedjax_lab import optim
from fedjax_lab.types import Weights

KEYS = naive.KEYS


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


@pytest.mark.exhaustive
def test_fedcm_divides_an_update_by_the_reach_of_the_local_steps():
    """With one client in the first round, the server's update is that of this client."""
    plan = toys.PLAN._replace(cohort=1)
    state, _ = toys.player(toys.make("fedcm"), plan=plan)(KEYS, 0, 1)
    first = toys.NORM.init(KEYS.init)
    (i,) = naive.cohort(toys.make("fedcm"), 0, 1)
    steps = plan.epochs * -(-int(toys.POPULATION.n[i]) // plan.batch_size)
    back = first.params["head"]["kernel"] - state.server[0].params["head"]["kernel"]
    reach = np.asarray(back) / np.asarray(state.server[1]["head"]["kernel"])
    expected = float(optim.reach(plan.optimizer, steps))
    np.testing.assert_allclose(np.median(reach), expected, rtol=1e-3)
