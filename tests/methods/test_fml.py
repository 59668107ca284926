"""Tests FML against FedAvg, local training and NumPy."""

import jax
import naive
import numpy as np
import pytest
import toys
from rounds import by_hand, rounds
from scipy import special

from fedjax_lab import tree
from fedjax_lab.methods.fml import divergence


def mutual(share, w, teacher, x, y):
    """Returns the gradient of share F(w) + (1 - share) KL(teacher || w)."""
    d = (naive.probabilities(w, x) - naive.probabilities(teacher, x)) / len(x)
    risk = [share * g for g in naive.gradient(w, x, y)[1]]
    return naive.add(risk, naive.backward(w, x, d), 1 - share)


@pytest.mark.slow
def test_fml_against_numpy():
    alpha, beta = 0.3, 0.8
    method = toys.make("fml", toys.TASK, alpha=alpha, beta=beta)
    v = [naive.first_weights()] * toys.C

    def train(i, w, x, y):
        def both_gradients(both):
            shared, personal = both[:4], both[4:]
            return mutual(beta, shared, personal, x, y) + mutual(alpha, personal, shared, x, y)

        both = naive.descend(w + v[i], both_gradients)
        v[i] = both[4:]
        return both[:4]

    w, state = by_hand(method, 4, train), rounds(method, 4)
    naive.close(state.server, w, rtol=1e-3, atol=1e-4)
    for i in range(toys.C):
        naive.close(tree.take(state.private, i), v[i], rtol=1e-3, atol=1e-4)


def test_the_divergence_and_its_gradient_against_numpy():
    x, y = naive.data_of(0)
    shapes = jax.eval_shape(toys.TASK.init, naive.KEYS.init)
    w, v = (naive.weights_of(toys.random_weights(shapes, seed)) for seed in (1, 2))
    teacher, student = (np.float32(naive.logits(each, x)) for each in (v, w))
    p, q = (naive.probabilities(each, x) for each in (v, w))
    both = jax.jit(jax.value_and_grad(divergence, (0, 1)))
    value, (of_teacher, of_student) = both(teacher, student, np.ones(len(y), np.float32))
    expected = special.rel_entr(p, q).sum(1).mean()
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    np.testing.assert_allclose(of_student, (q - p) / len(y), rtol=1e-3, atol=1e-6)
    assert not np.any(of_teacher)
