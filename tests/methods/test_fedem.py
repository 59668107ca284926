"""Compares FedEM with FedAvg in a special case, and with plain NumPy."""

import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import PLAIN, one_client, rounds

from fedjax_lab import tree
from fedjax_lab.simulation import simulate


def shares(components, pi, x, y):
    """The responsibilities q [B, M] of the components."""
    likelihoods = [naive.probabilities(w, x)[np.arange(len(y)), y] for w in components]
    q = pi * np.stack(likelihoods, 1)
    return q / q.sum(1, keepdims=True)


def weighted_gradient(w, x, y, q):
    """The gradient of the mean of q times the cross-entropy."""
    d = (naive.probabilities(w, x) - np.eye(toys.K)[y]) * q[:, None] / len(y)
    return naive.backward(w, x, d)


@pytest.fixture(scope="module")
def played():
    """The method, its state after three rounds, and NumPy's components and mixtures."""
    method = toys.make("fedem", toys.TASK, num_components=2)
    first = simulate.init(method, KEYS, toys.C).server
    w = [naive.weights_of(tree.take(first, m)) for m in range(2)]
    pi = {i: np.full(2, 0.5) for i in range(toys.C)}
    for t in range(3):
        ids, models = naive.cohort(method, t), ([], [])
        for i in ids:
            x, y = naive.data_of(i, toys.SKEWED)
            q = shares(w, pi[i], x, y)
            pi[i] = q.mean(0)
            for m in range(2):
                step = lambda v, q=q[:, m], x=x, y=y: weighted_gradient(v, x, y, q)  # noqa: E731
                models[m].append(naive.descend(w[m], step, momentum=0.0))
        w = [naive.mean_by_size(ids, models[m], toys.SKEWED) for m in range(2)]
    return method, rounds(method, 3, PLAIN, toys.SKEWED), w, pi


@pytest.mark.slow
def test_fedem_against_numpy(played):
    method, state, w, pi = played
    for m in range(2):
        naive.close(tree.take(state.server, m), w[m])
    np.testing.assert_allclose(state.private, [pi[i] for i in range(toys.C)], rtol=1e-4, atol=1e-5)
    x, _ = naive.data_of(1)
    i = int(np.argmax(np.abs(np.asarray(state.private)[:, 0] - 0.5)))
    client = tree.take(toys.POPULATION._replace(private=state.private), i)
    mixed = sum(pi[i][m] * naive.probabilities(w[m], x) for m in range(2))
    logits = method.predict(state.server, client, jnp.asarray(x))
    np.testing.assert_allclose(np.exp(logits), mixed, rtol=1e-3, atol=1e-5)


def test_a_new_client_fits_its_mixture_to_its_examples(played):
    method, state, w, _ = played
    pi = np.full(2, 0.5)
    for _ in range(10):
        pi = shares(w, pi, *naive.data_of(3)).mean(0)
    joined = one_client(method.join, state.server, 3)[1]
    np.testing.assert_allclose(joined, pi, rtol=1e-3, atol=1e-5)
