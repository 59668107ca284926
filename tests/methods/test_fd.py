"""Compares FD with Local in a special case, and with plain NumPy."""

import jax
import naive
import numpy as np
import pytest
import toys
from naive import KEYS

from fedjax_lab import tree
from fedjax_lab.methods.fd import teach


def taught(w, x, y, gamma, teacher):
    """The gradient of the risk plus gamma times the cross-entropy with the teacher's outputs."""
    target = np.array([teacher.get(c, np.zeros(toys.K)) for c in y])
    d = target.sum(1, keepdims=True) * naive.probabilities(w, x) - target
    return naive.add(naive.gradient(w, x, y)[1], naive.backward(w, x, gamma * d / len(x)))


def teacher_of(i, outputs):
    """For each class, the mean outputs of the other clients that have it."""
    by_class = {}
    for c in range(toys.K):
        of_others = [F[c] for j, F in outputs.items() if j != i and c in F]
        if of_others:
            by_class[c] = np.mean(of_others, 0)
    return by_class


@pytest.mark.slow
def test_against_numpy():
    """Clients lack some classes; clients outside the cohort teach with their last outputs."""
    gamma, method = 0.7, toys.make("fd", toys.TASK, gamma=0.7)
    w, outputs = [naive.first_weights()] * toys.C, {}
    for t in range(4):
        new = {}
        for i in naive.cohort(method, t):
            x, y = naive.data_of(i, toys.SKEWED)
            G = teacher_of(i, outputs)
            w[i] = naive.descend(w[i], lambda v, x=x, y=y, G=G: taught(v, x, y, gamma, G))
            new[i] = {c: naive.probabilities(w[i], x[y == c]).mean(0) for c in set(y.tolist())}
        outputs |= new
    state, _ = toys.player(method, plan=naive.FULL, federation=toys.SKEWED)(KEYS, 0, 4)
    send = jax.jit(method.round[0].send)
    for i in range(toys.C):
        naive.close(tree.take(state.private, i), w[i], rtol=1e-3, atol=1e-4)
        G, exists = send(state.server, i)
        expected = teacher_of(i, outputs)
        np.testing.assert_array_equal(np.flatnonzero(exists), sorted(expected))
        for c, mean in expected.items():
            np.testing.assert_allclose(G[c], mean, rtol=1e-3, atol=1e-4)


def test_the_teacher_is_the_mean_over_the_other_clients_that_have_a_class():
    rng = np.random.default_rng(0)
    F, has = rng.random((toys.C, toys.K, toys.K), np.float32), rng.random((toys.C, toys.K)) < 0.3
    outputs = {j: {c: F[j, c] for c in np.flatnonzero(has[j])} for j in range(toys.C)}
    G, exists = jax.jit(jax.vmap(teach, (None, 0)))((F, has), np.arange(toys.C))
    for i in range(toys.C):
        expected = teacher_of(i, outputs)
        np.testing.assert_array_equal(np.flatnonzero(exists[i]), sorted(expected))
        for c, mean in expected.items():
            np.testing.assert_allclose(G[i, c], mean, rtol=1e-5)
