"""Compares FedDyn with the form of the authors' code."""

import jax
import naive
import numpy as np
import pytest
import toys
from rounds import PLAIN, rounds, scores
from slow_cases import exhaustive_but

from fedjax_lab import optim, simulate, tree

KEYS = naive.KEYS


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


@pytest.mark.parametrize("clip", exhaustive_but([0.4], [10.0, 0.4]))
def test_feddyn_has_the_iterates_of_the_authors_code(clip):
    """The two forms agree after 50 rounds with three of eight clients."""
    method = toys.make("feddyn", toys.TASK, alpha=0.1, clip=clip)
    cloud, mean = feddyn_as_in_the_authors_code(method, 50, 0.1, clip, naive.first_weights())
    state = rounds(method, 50, PLAIN)
    naive.close(state.server.theta, cloud, rtol=1e-3, atol=1e-3)
    naive.close(state.server.mean, mean, rtol=1e-3, atol=1e-3)
    assert float(tree.sq_norm(state.server.h)) > 1e-6


def test_feddyn_uses_the_learning_rate_of_the_round():
    method = toys.make("feddyn", toys.TASK, alpha=0.1, clip=0.4)

    def decayed(t):
        return method, {"optimizer": optim.sgd(naive.LR * 0.7**t, 0.0, naive.DECAY)}

    form = method, 5, 0.1, 0.4, naive.first_weights()
    cloud, mean = feddyn_as_in_the_authors_code(*form, decay=0.7)
    state = rounds(method, 5, PLAIN, scheduled=decayed)
    naive.close(state.server.theta, cloud, rtol=1e-3, atol=1e-3)
    naive.close(state.server.mean, mean, rtol=1e-3, atol=1e-3)
    without, _ = feddyn_as_in_the_authors_code(*form)
    assert max(np.abs(a).max() for a in naive.sub(without, cloud)) > 1e-2


def test_feddyn_is_scored_on_the_participants_mean():
    """Neither existing nor new clients are scored on the cloud model, which is sent."""
    method = toys.make("feddyn", toys.TASK)
    state = simulate.init(method, KEYS, toys.C)
    theta = toys.TASK.init(jax.random.key(9))
    state = state._replace(server=state.server._replace(theta=theta))
    scored = scores(method, state)

    def hits(w, rows):
        x, y = (np.asarray(a)[np.asarray(rows)] for a in toys.FEDERATION[:2])
        return int((naive.predict(naive.weights_of(w), x) == y).sum())

    mean, world = state.server.mean, toys.FEDERATION.global_test
    assert int(scored.global_test.correct.sum()) == hits(mean, world) != hits(theta, world)
    assert int(scored.test.correct[3, 0]) == hits(mean, toys.FEDERATION.test[3])
