"""Compares PeFLL with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work

from fedjax_lab import tree
from fedjax_lab.methods import pefll
from fedjax_lab.types import Batch, Weights

E, LR = 3, 0.01
X, Y = naive.data_of(0, toys.SKEWED)


def made(task=toys.TASK):
    """The method and the first state of the server, with different embeddings."""
    method = toys.make("pefll", task, embedding_dim=E, server_lr=LR)
    v = jax.random.normal(KEYS.score, (toys.C, E))
    return method, method.init(KEYS.init, toys.C).server._replace(v=v)


def given(psi):
    """What the last layer of the embedding network gets: features and labels."""
    return np.concatenate([naive.features(naive.weights_of(psi["body"]), X), np.eye(toys.K)[Y]], 1)


@pytest.mark.slow
def test_embeddings_and_their_gradient_against_numpy():
    method, server = made()
    psi, d = server.psi, np.float32([1, -2, 0.5])
    last = jax.tree.map(np.asarray, psi["last"])
    expected = (given(psi) @ last["kernel"] + last["bias"]).mean(0)
    batch = Batch(jnp.asarray(X), jnp.asarray(Y), jnp.ones(len(Y)))
    got = pefll.embedding(toys.TASK, toys.K, psi, batch)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    scoring = method.round[-1]._replace(local=method.tune)
    tuned, *_ = local_work(method._replace(round=(scoring,)), server)
    toys.close(tuned.params, pefll.model(server.theta, jnp.asarray(expected)))
    assert method.join is method.tune  # new clients need no training either
    u, _, _, _ = local_work(method, (psi, jnp.asarray(d)))
    np.testing.assert_allclose(u["last"]["kernel"], np.outer(given(psi).mean(0), d), rtol=1e-4)
    np.testing.assert_allclose(u["last"]["bias"], d, rtol=1e-5)
    h = naive.features(naive.weights_of(psi["body"]), X)
    slope = np.tile(last["kernel"][: h.shape[1]] @ d / len(Y), (len(Y), 1)) * (h > 0)
    first = u["body"].params["Dense_0"]
    np.testing.assert_allclose(first["kernel"], X.T @ slope, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(first["bias"], slope.sum(0), rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_the_server_pulls_the_changes_of_models_back():
    """The gradient of the last biases is the mean change, and Adam's first step is its sign."""
    method, server = made()
    ids, arrived = jnp.array([4, 1, toys.C]), jnp.array([True, True, False])
    cohort = tree.take(toys.POPULATION, ids % toys.C)._replace(
        id=ids, arrived=arrived, weight=jnp.array([0.5, 0.5, 0.0])
    )
    models = [toys.random_weights(toys.TASK.init(KEYS.init), seed) for seed in (5, 6)]
    delta = jax.tree.map(lambda a, b: jnp.stack([a, b, 0 * a]), *models)
    after = method.round[1].aggregate(server, delta, cohort)
    g = naive.mean([0.5, 0.5], [naive.weights_of(w) for w in models])
    old, new = (naive.weights_of(Weights(s.theta.bias, {})) for s in (server, after))
    for a, b, slope in zip(old, new, g, strict=True):
        np.testing.assert_allclose(b, a - LR * np.sign(slope), atol=1e-3)

    def along(v, i):
        return float(tree.dot(pefll.model(server.theta, v), models[i].params)) / 2

    for i, client in enumerate((4, 1)):
        v, ahead = server.v[client], 1e-2 * jnp.eye(E)
        slope = [(along(v + a, i) - along(v - a, i)) / 2e-2 for a in ahead]
        np.testing.assert_allclose(after.d[client], slope, rtol=0.1, atol=1e-2)
    np.testing.assert_array_equal(after.d[0], 0)


@pytest.mark.slow
def test_the_server_trains_psi_without_its_running_statistics():
    method, server = made(toys.NORM)
    u, *_ = local_work(method, (server.psi, jnp.array([1, -2, 0.5])))
    stats = jax.tree.leaves(u["body"].stats)
    assert stats and not any(map(np.any, stats))
    last = server.psi["last"]["kernel"]
    others = toys.normal(0, 3, *last.shape)
    stacked = tree.repeat(u, 3)
    stacked["last"]["kernel"] = others
    cohort = tree.take(toys.POPULATION, jnp.arange(3))
    cohort = cohort._replace(arrived=jnp.array([True, False, True]))
    after = method.round[2].aggregate(server, stacked, cohort).psi
    expected = last - LR * np.sign(others[0] + others[2])
    np.testing.assert_allclose(after["last"]["kernel"], expected, atol=1e-5)
    toys.same(after["body"].stats, server.psi["body"].stats)


def test_new_embeddings_replace_those_of_the_clients_of_the_round():
    v, new = jnp.zeros((toys.C, E)), toys.normal(0, 3, E)
    server = pefll.Server(*[None] * len(pefll.Server._fields))._replace(v=v)
    cohort = tree.take(toys.POPULATION, jnp.array([6, 1, 3]))
    after = jax.jit(pefll.keep_embeddings)(server, new, cohort).v
    np.testing.assert_array_equal(after[cohort.id], new)
    assert not np.any(np.delete(after, cohort.id, 0))
