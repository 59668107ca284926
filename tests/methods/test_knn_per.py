"""Tests kNN-Per against FedAvg and NumPy, and how a client chooses lam."""

import functools

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import one_client, scores

from fedjax_lab import tree
from fedjax_lab.methods import knn_per

METHOD = functools.partial(toys.make, "knn_per", toys.TASK)


@functools.cache
def averaged():
    return toys.player(toys.make("fedavg", toys.TASK))(KEYS, 0, 3)[0]


@pytest.mark.exhaustive
def test_knn_per_trains_as_fedavg_and_with_weight_0_scores_as_fedavg():
    toys.same(toys.player(METHOD(weight=0.0))(KEYS, 0, 3)[0], averaged())
    fedavg = toys.make("fedavg", toys.TASK)
    one, other = (scores(method, averaged()) for method in (METHOD(weight=0.0), fedavg))
    toys.same(one.test.correct, other.test.correct)
    toys.same(one.global_test, other.global_test)


def by_hand(w, i, x, lam, k, federation=toys.FEDERATION):
    """Returns the probabilities [B, K] of client i."""
    x_i, y_i = naive.data_of(i, federation)
    z, z_i = naive.features(w, x), naive.features(w, x_i)
    logits = z @ w[2] + w[3]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p = (1 - lam) * p / p.sum(1, keepdims=True)
    for b in range(len(x)):
        distance = np.linalg.norm(z[b] - z_i, axis=1)
        near = np.argsort(distance, kind="stable")[:k]
        share = np.exp(-distance[near]) / np.exp(-distance[near]).sum()
        for j, weight in zip(near, share, strict=True):
            p[b, y_i[j]] += lam * weight
    return p


@pytest.mark.parametrize("k", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_knn_per_against_numpy(k):
    """Clients have 10 to 37 examples, so that most have fewer than 30 neighbors."""
    method, state = METHOD(weight=0.7, neighbors=k), averaged()
    predict = jax.jit(method.predict)
    w = naive.weights_of(state.server)
    for i in range(toys.C):
        x = np.asarray(toys.FEDERATION.x[400:420])
        message, store = one_client(method.tune, state.server, i)
        client = tree.take(toys.POPULATION, i)._replace(private=store)
        logits = predict(message, client, x)
        np.testing.assert_allclose(np.exp(logits), by_hand(w, i, x, 0.7, k), atol=2e-6)


@pytest.mark.exhaustive
def test_weight_validation_gives_each_client_the_lam_of_least_loss():
    method = METHOD(weight="validation", neighbors=3)
    federation = toys.with_validation(toys.FEDERATION)
    state = averaged()
    w, chosen = naive.weights_of(state.server), set()
    for i in range(toys.C):
        rows = np.asarray(federation.validation[i])
        rows = rows[rows >= 0]
        x, y = np.asarray(federation.x)[rows], np.asarray(federation.y)[rows]
        losses = []
        with np.errstate(divide="ignore"):
            for lam in np.linspace(0, 1, 11):
                p = by_hand(w, i, x, lam, 3, federation)
                losses.append(-np.log(p[np.arange(len(y)), y]).mean())
        _, store = one_client(method.tune, state.server, i, federation=federation)
        chosen.add(round(float(store.lam), 1))
        assert losses[round(float(store.lam) * 10)] <= min(losses) + 1e-5
    assert len(chosen) > 1
    assert scores(method, state, federation).test.total.sum() == 8 * 20


def test_logits_are_finite_without_a_neighbor_of_a_class_or_any_neighbor():
    method, x = METHOD(weight=1.0, neighbors=1), toys.FEDERATION.x[400:420]
    w = averaged().server
    _, store = one_client(method.tune, w, 0)
    client = tree.take(toys.POPULATION, 0)._replace(private=store)
    logits = np.asarray(jax.jit(method.predict)(w, client, x))
    assert np.isfinite(logits).all() and (np.sort(logits)[:, -2] < -80).all()
    store = knn_per.Store(jnp.ones((4, 16)), jnp.zeros(4, int), jnp.zeros(4), jnp.float32(0.5))
    x, w = toys.FEDERATION.x[:5], averaged().server
    client = tree.take(toys.POPULATION, 0)._replace(private=store)
    logits = jax.jit(METHOD().predict)(w, client, x)
    np.testing.assert_allclose(logits, jax.nn.log_softmax(toys.TASK.apply(w, x).logits), rtol=1e-6)
