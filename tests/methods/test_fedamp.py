"""Compares FedAMP with plain NumPy, and checks lost uploads."""

import jax
import naive
import numpy as np
import pytest
import toys
from naive import KEYS

from fedjax_lab import tree
from fedjax_lab.simulation import simulate


def cloud(i, w, sigma, alpha):
    """The cloud model u_i."""
    squares = [sum(((a - b) ** 2).sum() for a, b in zip(w[i], v, strict=True)) for v in w]
    xi = alpha / sigma * np.exp(-np.array(squares) / sigma)
    xi[i] = 0
    xi[i] = 1 - xi.sum()
    return naive.mean(xi, w)


@pytest.mark.slow
def test_against_numpy():
    sigma, alpha, pull = 0.5, 0.05, 2.0
    method = toys.make("fedamp", toys.TASK, sigma=sigma, alpha=alpha, pull=pull)
    w = [naive.first_weights()] * toys.C
    for t in range(4):
        new = {}
        for i in naive.cohort(method, t):
            u = cloud(i, w, sigma, alpha)
            extra = lambda v, u=u: [pull * a for a in naive.sub(v, u)]  # noqa: E731
            new[i] = naive.sgd(w[i], *naive.data_of(i), extra)
        w = [new.get(i, v) for i, v in enumerate(w)]
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 4)
    send = jax.jit(method.round[0].send)
    for i in range(toys.C):
        naive.close(tree.take(state.private, i), w[i])
        naive.close(tree.take(state.server.models, i), w[i])
        naive.close(send(state.server, i), cloud(i, w, sigma, alpha))


def test_a_lost_upload_changes_nothing():
    method = toys.make("fedamp", toys.TASK)
    state = simulate.init(method, KEYS, toys.C)
    cohort = tree.take(toys.POPULATION, np.array([2, 5]))._replace(id=np.array([2, toys.C]))
    uploads = jax.tree.map(lambda a: a[:2] + 1.0, state.private)
    server = method.round[0].aggregate(state.server, uploads, cohort)
    moved = [i for i in range(toys.C) if float(server.far[i].max()) and i != 2]
    assert moved == [i for i in range(toys.C) if i != 2]  # only their distance to client 2
    assert float(server.far[5, 7]) == 0 and float(server.far[2, 5]) > 0
