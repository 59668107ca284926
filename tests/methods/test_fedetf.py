"""FedETF: its simplex frame, and a comparison with plain NumPy."""

import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from rounds import PLAIN, rounds

from fedjax_lab import tree
from fedjax_lab.methods.fedetf import simplex


def test_the_frame_is_a_simplex():
    V = np.asarray(simplex(jnp.eye(5)))
    np.testing.assert_allclose(V.T @ V, 1.25 * np.eye(5) - 0.25, atol=1e-6)


def gradient(w, beta, x, y, prior):
    """The gradient of the cross-entropy with respect to the model and beta."""
    h, K = naive.features(w, x), toys.K
    p = h @ w[2] + w[3]
    norm = np.linalg.norm(p, axis=1, keepdims=True)
    z = p / norm
    V = np.sqrt(K / (K - 1)) * (np.eye(K) - 1 / K)
    e = np.exp(beta * z @ V + prior)
    d = (e / e.sum(1, keepdims=True) - np.eye(K)[y]) / len(y)
    dz = beta * d @ V.T
    dp = (dz - z * (dz * z).sum(1, keepdims=True)) / norm
    dh = dp @ w[2].T * (h > 0)
    return [x.T @ dh, dh.sum(0), h.T @ dp, dp.sum(0)], (d * (z @ V)).sum()


@pytest.mark.slow
def test_fedetf_against_numpy():
    method = toys.make("fedetf", toys.TASK, gamma=0.5, scale=4.0)
    w, beta = naive.first_weights(), 4.0
    for t in range(3):
        ids, models = naive.cohort(method, t), []
        for i in ids:
            x, y = naive.data_of(i, toys.SKEWED)
            prior = 0.5 * np.log(np.maximum(naive.counts(i), 1e-8))

            def joint_gradient(both, x=x, y=y, prior=prior):
                g, of_beta = gradient(both[:4], both[4], x, y, prior)
                return [*g, of_beta]

            models.append(naive.descend([*w, np.array(beta)], joint_gradient, momentum=0.0))
        *w, beta = naive.mean_by_size(ids, models, toys.SKEWED)
    state = rounds(method, 3, PLAIN, toys.SKEWED)
    naive.close(state.server, w)
    np.testing.assert_allclose(state.server.params["etf"]["scale"], beta, rtol=1e-4)
    client = tree.take(toys.POPULATION, 0)
    x, _ = naive.data_of(0)
    z = naive.features(w, x) @ w[2] + w[3]
    expected = z / np.linalg.norm(z, axis=1, keepdims=True)
    expected = beta * np.sqrt(4 / 3) * (expected - expected.mean(1, keepdims=True))
    logits = method.predict(state.server, client, jnp.asarray(x))
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)
