"""Compares FedDyn with the form of the authors' code."""

import jax
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import PLAIN, rounds

from fedjax_lab import optim, tree
from fedjax_lab.simulation import simulate


def feddyn_as_in_the_authors_code(method, count, alpha, clip, w, decay=1.0):
    """Uses g_i = -l_i / alpha, and the mean of all g_i instead of h. Returns (cloud, mean)."""
    n = np.array([len(naive.data_of(i)[1]) for i in range(toys.C)])
    g = [[np.zeros_like(a) for a in w] for _ in n]
    cloud = w
    for t in range(count):
        ids = naive.cohort(method, t)
        models = []
        for i in ids:
            alpha_i = alpha * n.mean() / n[i]
            x = [a.copy() for a in cloud]
            for _ in range(naive.STEPS):
                _, grad = naive.gradient(x, *naive.data_of(i))
                grad = naive.add(grad, naive.sub(g[i], cloud), alpha_i)
                norm = np.sqrt(sum((a * a).sum() for a in grad))
                grad = [a * min(1, clip / norm) for a in grad]
                x = naive.add(x, naive.add(grad, x, alpha_i + naive.DECAY), -naive.LR * decay**t)
            g[i] = naive.add(g[i], naive.sub(x, cloud))
            models.append(x)
        mean = naive.mean(np.full(len(ids), 1 / len(ids)), models)
        cloud = naive.add(mean, naive.mean(np.full(toys.C, 1 / toys.C), g))
    return cloud, mean


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clip", "decay"), [(0.4, 0.7), pytest.param(0.4, 1.0, marks=pytest.mark.exhaustive)]
)
def test_feddyn_has_the_iterates_of_the_authors_code(clip, decay):
    """The two forms agree after 50 rounds, or after 5 whose learning rates decay."""
    method, count = toys.make("feddyn", toys.TASK, alpha=0.1, clip=clip), 50 if decay == 1 else 5

    def decayed(t):
        return method, {"optimizer": optim.sgd(naive.LR * decay**t, 0.0, naive.DECAY)}

    form = method, count, 0.1, clip, naive.first_weights(), decay
    cloud, mean = feddyn_as_in_the_authors_code(*form)
    state = rounds(method, count, PLAIN, scheduled=None if decay == 1 else decayed)
    naive.close(state.server.theta, cloud, rtol=1e-3, atol=1e-3)
    naive.close(state.server.mean, mean, rtol=1e-3, atol=1e-3)
    assert float(tree.sq_norm(state.server.h)) > 1e-6


def test_feddyn_is_scored_on_the_participants_mean():
    """Neither existing nor new clients are scored on the cloud model, which is sent."""
    method = toys.make("feddyn", toys.TASK)
    state = simulate.init(method, KEYS, toys.C)
    mean = toys.TASK.init(jax.random.key(9))
    state = state._replace(server=state.server._replace(mean=mean))
    toys.same((method.scored(state.server, 0), method.newcomer(state)[0]), (mean, mean))
