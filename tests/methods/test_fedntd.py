"""Compares FedNTD with FedAvg in a special case, and with plain NumPy."""

import naive
import numpy as np
import toys
from rounds import by_hand, rounds


def others(logits, y, tau):
    """The softmax with temperature tau over all classes but the true one, whose share is 0."""
    p = np.exp(logits / tau)
    p[np.arange(len(y)), y] = 0
    return p / p.sum(1, keepdims=True)


def test_fedntd_against_numpy():
    """The gradient of tau^2 KL(q_t || q) with respect to the logits is tau (q - q_t)."""
    beta, tau = 1.5, 2.0
    method = toys.make("fedntd", toys.TASK, beta=beta, tau=tau)

    def train(i, w, x, y):
        q_t = others(naive.logits(w, x), y, tau)

        def gradient_of(v):
            d = others(naive.logits(v, x), y, tau) - q_t
            distilled = naive.backward(v, x, d * beta * tau / len(y))
            return naive.add(naive.gradient(v, x, y)[1], distilled)

        return naive.descend(w, gradient_of)

    naive.close(rounds(method, 3).server, by_hand(method, 3, train))
