"""Tests FML against FedAvg, local training and NumPy."""

import naive
import pytest
import toys
from rounds import averaged
from scipy.special import softmax

from fedjax_lab import tree

KEYS = naive.KEYS


@pytest.mark.slow
def test_fml_without_mutual_terms_is_fedavg_and_local_training():
    state, _ = toys.player(toys.make("fml", alpha=1.0, beta=1.0))(KEYS, 0, 3)
    toys.close(state.server, averaged()[0].server, rtol=1e-5, atol=1e-6)
    all_clients = toys.PLAN._replace(cohort=toys.C)
    method = toys.make("fml", alpha=1.0, beta=1.0)
    state, _ = toys.player(method, plan=all_clients)(KEYS, 0, 3)
    local, _ = toys.player(toys.make("local"), plan=all_clients)(KEYS, 0, 3)
    toys.close(state.private, local.private, rtol=1e-5, atol=1e-6)


def probabilities(w, x):
    return softmax(naive.features(w, x) @ w[2] + w[3], 1)


def mutual(share, w, teacher, x, y):
    """Returns the gradient of share F(w) + (1 - share) KL(teacher || w)."""
    h, d = naive.features(w, x), (probabilities(w, x) - probabilities(teacher, x)) / len(x)
    dh = d @ w[2].T * (h > 0)
    risk = [share * g for g in naive.gradient(w, x, y)[1]]
    return naive.add(risk, [x.T @ dh, dh.sum(0), h.T @ d, d.sum(0)], 1 - share)


@pytest.mark.slow
def test_fml_against_numpy():
    alpha, beta = 0.3, 0.8
    method = toys.make("fml", toys.TASK, alpha=alpha, beta=beta)
    w = naive.first_weights()
    v = [w] * toys.C
    for t in range(4):
        models = []
        for i in (ids := naive.cohort(method, t)):

            def both_gradients(wv, i=i):
                shared, personal = wv[:4], wv[4:]
                xy = naive.data_of(i)
                return mutual(beta, shared, personal, *xy) + mutual(alpha, personal, shared, *xy)

            together = naive.descend(w + v[i], both_gradients)
            models.append(together[:4])
            v[i] = together[4:]
        w = naive.mean_by_size(ids, models)
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 4)
    naive.close(state.server, w, rtol=1e-3, atol=1e-4)
    for i in range(toys.C):
        naive.close(tree.take(state.private, i), v[i], rtol=1e-3, atol=1e-4)
