"""Tests FedSoft against NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from rounds import different_models

from fedjax_lab import tree
from fedjax_lab.methods.fedsoft import Server
from fedjax_lab.simulation import simulate


@pytest.mark.slow
def test_fedsoft_against_numpy():
    """Every second round, a client computes its u from all centers on the same examples."""
    mu, K = 0.3, 3
    method = toys.make("fedsoft", toys.TASK, num_clusters=K, mu=mu)
    state, _ = toys.player(method, plan=naive.FULL)(naive.KEYS, 0, 4)
    init = simulate.init(method, naive.KEYS, toys.C).server.centers
    centers = [naive.weights_of(tree.take(init, k)) for k in range(K)]
    u = np.full((toys.C, K), 1 / K)
    for t in range(4):
        ids = naive.cohort(method, t)
        models = []
        for i in ids:
            x, y = naive.data_of(i)
            if t % 2 == 0:
                loss = [-np.log(naive.probabilities(c, x)[np.arange(len(y)), y]) for c in centers]
                best = np.argmin(loss, 0)
                u[i] = np.maximum(1e-4, [(best == k).mean() for k in range(K)])

            def pull(w):
                return [
                    sum(mu * u[i][k] * (a - centers[k][j]) for k in range(K))  # noqa: B023
                    for j, a in enumerate(w)
                ]

            models.append(naive.sgd(centers[int(u[i].argmax())], x, y, extra=pull))
        weight = np.array([u[i] * len(naive.data_of(i)[1]) for i in ids]).T
        centers = [naive.mean(row / row.sum(), models) for row in weight]
    for k in range(K):
        naive.close(tree.take(state.server.centers, k), centers[k])
    np.testing.assert_allclose(state.private, u, rtol=1e-5)


def test_centers_are_means_weighted_by_importance_and_size():
    method, ids = toys.make("fedsoft", toys.TASK), np.array([6, 1, 3])
    stacked, arrays = different_models()
    u = np.random.default_rng(0).random((3, 2), np.float32)
    server = Server(tree.take(stacked, jnp.arange(2)), jnp.int32(4))
    uploads, cohort = (u, tree.take(stacked, ids)), tree.take(toys.POPULATION, ids)
    after = jax.jit(method.round[0].aggregate)(server, uploads, cohort)
    assert int(after.t) == 5
    for k in range(2):
        weight = u[:, k] * np.asarray(cohort.n)
        expected = naive.mean(weight / weight.sum(), [arrays[i] for i in ids])
        naive.close(tree.take(after.centers, k), expected)
