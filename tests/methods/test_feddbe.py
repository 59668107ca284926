"""Compares FedDBE with plain NumPy."""

import naive
import numpy as np
import toys
from rounds import PLAIN, rounds


def shifted_gradient(w, p, x, y, of_mean):
    """The gradient with respect to w and p of the loss with a head on h + p, plus another term.

    of_mean(h): that term's gradient with respect to the mean of h, times the number of features.
    """
    h = naive.features(w, x)
    o = (h + p) @ w[2] + w[3]
    e = np.exp(o - o.max(1, keepdims=True))
    d = (e / e.sum(1, keepdims=True) - np.eye(toys.K)[y]) / len(y)
    dz = (d @ w[2].T + of_mean(h) / h.size) * (h > 0)
    return [x.T @ dz, dz.sum(0), (h + p).T @ d, d.sum(0), (d @ w[2].T).sum(0)]


def test_feddbe_against_numpy():
    kappa = 3.0
    method = toys.make("feddbe", toys.TASK, kappa=kappa)
    w, p, mean = naive.first_weights(), {i: np.zeros(16) for i in range(toys.C)}, None
    for t in range(3):
        ids, models, means = naive.cohort(method, t), [], []
        for i in ids:
            x, y = naive.data_of(i, toys.SKEWED)

            def joint_gradient(both, x=x, y=y, mean=mean):
                v, shift = both[:4], both[4]
                if mean is None:
                    return [*naive.gradient(v, x, y)[1], 0 * shift]
                return shifted_gradient(v, shift, x, y, lambda h: kappa * (h.mean(0) - mean))

            *v, p[i] = naive.descend([*w, p[i]], joint_gradient, momentum=0.0)
            models.append(v)
            means.append([naive.features(v, x).mean(0)])
        w = naive.mean_by_size(ids, models, toys.SKEWED)
        if mean is None:
            (mean,) = naive.mean_by_size(ids, means, toys.SKEWED)
    state = rounds(method, 3, PLAIN, toys.SKEWED)
    naive.close(state.server[0], w)
    np.testing.assert_allclose(state.server[1], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.private, [p[i] for i in range(toys.C)], rtol=1e-4, atol=1e-5)
