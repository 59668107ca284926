"""Compares FedNTD with FedAvg in a special case, and with plain NumPy."""

import naive
import numpy as np
import pytest
import toys
from rounds import check_averages, rounds

KEYS = naive.KEYS


@pytest.mark.slow
def test_fedntd_without_beta_is_fedavg():
    check_averages(toys.make("fedntd", beta=0.0))


def others(logits, y, tau):
    """The softmax with temperature tau over all classes but the true one, whose share is 0."""
    p = np.exp(logits / tau)
    p[np.arange(len(y)), y] = 0
    return p / p.sum(1, keepdims=True)


def logits_of(w, x):
    return naive.features(w, x) @ w[2] + w[3]


def test_fedntd_against_numpy():
    """The gradient of KL(q_t || q) with respect to the logits is (q - q_t) / tau."""
    beta, tau = 1.5, 2.0
    method = toys.make("fedntd", toys.TASK, beta=beta, tau=tau)
    w = naive.first_weights()
    for t in range(3):
        ids, models = naive.cohort(method, t), []
        for i in ids:
            x, y = naive.data_of(i)
            q_t = others(logits_of(w, x), y, tau)

            def gradient_of(v, x=x, y=y, q_t=q_t):
                h, d = naive.features(v, x), others(logits_of(v, x), y, tau) - q_t
                d *= beta / tau / len(y)
                _, g = naive.gradient(v, x, y)
                dz = d @ v[2].T * (h > 0)
                return naive.add(g, [x.T @ dz, dz.sum(0), h.T @ d, d.sum(0)])

            models.append(naive.descend(w, gradient_of))
        w = naive.mean_by_size(ids, models)
    naive.close(rounds(method, 3).server, w)
