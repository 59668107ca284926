"""Tests FML against FedAvg, local training and NumPy."""

import naive
import pytest
import toys
from rounds import by_hand, rounds

from fedjax_lab import tree


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
