"""FedGH: no server steps as a special case, and a comparison with plain NumPy."""

import naive
import numpy as np
import optax
import pytest
import toys
from naive import KEYS
from rounds import PLAIN, rounds

from fedjax_lab import tree
from fedjax_lab.simulation import simulate


@pytest.mark.exhaustive
def test_without_server_steps_the_head_is_unchanged():
    method = toys.make("fedgh", server_steps=0)
    state, _ = toys.player(method)(KEYS, 0, 2)
    first = simulate.init(method, KEYS, toys.C)
    toys.same(state.server, first.server)
    assert float(tree.sq_norm(optax.tree.sub(state.private, first.private))) > 1e-3


def test_fedgh_against_numpy():
    method = toys.make("fedgh", toys.TASK, server_lr=0.5, server_steps=4)
    w = naive.first_weights()
    bodies, head = {i: w[:2] for i in range(toys.C)}, w[2:]
    for t in range(3):
        v, c = [], []
        for i in naive.cohort(method, t):
            x, y = naive.data_of(i, toys.SKEWED)
            trained = naive.sgd(bodies[i] + head, x, y, momentum=0.0)
            bodies[i] = trained[:2]
            h = naive.features(trained, x)
            v += [h[y == k].mean(0) for k in sorted(set(y))]
            c += sorted(set(y))
        v, c, as_body = np.stack(v), np.array(c), [np.eye(16), np.zeros(16)]
        for _ in range(4):  # as_body is the identity for nonnegative features
            head = naive.add(head, naive.gradient(as_body + head, v, c)[1][2:], -0.5)
    state = rounds(method, 3, PLAIN, toys.SKEWED)
    for i in range(toys.C):
        naive.close(tree.join(state.server, tree.take(state.private, i)), bodies[i] + head)
