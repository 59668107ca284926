"""Compares pFedFDA with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work
from scipy.special import log_softmax

from fedjax_lab import tree
from fedjax_lab.methods import pfedfda
from fedjax_lab.simulation.population import make_population
from fedjax_lab.types import Batch

K, RIDGE = 4, 0.5
RNG = np.random.default_rng(0)
Y = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 0, 1])
Z = (RNG.normal(size=(12, 3)) + 2 * np.eye(K, 3)[Y]).astype(np.float32)
MASK = np.append(np.ones(10), np.zeros(2))
BATCH = Batch(jnp.asarray(Z), jnp.asarray(Y), jnp.asarray(MASK, jnp.float32))
SHARED = pfedfda.Gaussians(jnp.asarray(RNG.uniform(size=(K, 3)), jnp.float32), jnp.eye(3) + 0.2)
PI = np.bincount(Y[:10], minlength=K) / 10


def logits(z, mu, Sigma, pi):
    """The linear discriminants by the formula."""
    S = np.linalg.inv((1 - 1e-4) * Sigma + 1e-4 * np.trace(Sigma) / len(Sigma) * np.eye(len(Sigma)))
    pi = (pi + 1e-4) / (pi + 1e-4).sum()
    return z @ S @ mu.T - 0.5 * np.einsum("kd,de,ke->k", mu, S, mu) + np.log(pi)


def entropy(z, y, mu, Sigma, pi):
    """The mean cross-entropy."""
    return -log_softmax(logits(z, mu, Sigma, pi), 1)[np.arange(len(y)), y].mean()


def estimated(z, y):
    """Means by class, the global one for fewer than three examples, and the covariance."""
    mu = np.array(SHARED.mu)
    for c in range(K):
        if (y == c).sum() >= 3:
            mu[c] = z[y == c].mean(0)
    away = z - mu[y]
    return mu, away.T @ away / (len(y) - 1) + RIDGE * np.eye(3)


def test_the_classifier_is_a_linear_discriminant():
    g = pfedfda.classifier(SHARED, jnp.asarray(PI, jnp.float32))
    expected = logits(Z, *map(np.asarray, SHARED), PI)
    np.testing.assert_allclose(Z @ g["kernel"] + g["bias"], expected, rtol=1e-4, atol=1e-4)


def test_the_distribution_of_a_client():
    got = pfedfda.estimated(BATCH, SHARED.mu, RIDGE)
    for a, b in zip(got, estimated(Z[:10], Y[:10]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_coefficients_minimize_the_loss_of_the_other_fold():
    """No coefficients of a grid are better than those of the result."""
    fold, used = map(np.asarray, pfedfda.folds(BATCH, K))
    assert list(fold[:9]) == [0, 1, 0, 0, 1, 0, 1, 0, 1] and list(used) == [1] * 9 + [0] * 3
    in_fold = [used * (fold == k) > 0 for k in (0, 1)]
    of_folds = [estimated(Z[in_fold[1 - k]], Y[in_fold[1 - k]]) for k in (0, 1)]
    shared = [np.asarray(a) for a in SHARED]

    def mixed(b, alone):
        return [c * a + (1 - c) * s for c, a, s in zip(b, alone, shared, strict=True)]

    def loss(b):
        return sum(
            entropy(Z[in_fold[k]], Y[in_fold[k]], *mixed(b, of_folds[k]), PI) for k in (0, 1)
        )

    got = pfedfda.adapted(SHARED, BATCH, jnp.asarray(PI, jnp.float32), RIDGE)
    alone = estimated(Z[:10], Y[:10])
    triples = zip(got, alone, shared, strict=True)
    b = [np.vdot(g - s, a - s) / np.vdot(a - s, a - s) for g, a, s in triples]
    for g, expected in zip(got, mixed(b, alone), strict=True):
        np.testing.assert_allclose(g, expected, rtol=1e-3, atol=1e-4)
    grid = np.linspace(0, 1, 21)
    assert loss(b) <= min(loss((c, d)) for c in grid for d in grid) + 2e-3


def test_without_two_examples_of_a_class_a_client_keeps_the_global_distribution():
    batch = BATCH._replace(mask=jnp.zeros(12).at[9].set(1))
    toys.close(pfedfda.adapted(SHARED, batch, jnp.full(K, 0.25), RIDGE), SHARED, rtol=1e-6)


@pytest.mark.slow
def test_a_client_trains_the_body_under_the_global_classifier():
    method = toys.make("pfedfda", toys.TASK, ridge=RIDGE)
    server = method.init(KEYS.init, toys.C).server
    x, y = naive.data_of(0, toys.SKEWED)
    pi = np.bincount(y, minlength=toys.K) / len(y)
    mu, Sigma = map(np.asarray, server.features)
    upload, _, [(loss, start, options)], batch = local_work(method, server)
    w = jax.tree.map(np.asarray, start.params["Dense_0"])
    h = np.maximum(x @ w["kernel"] + w["bias"], 0)
    assert loss(start, batch, KEYS.init)[0] == pytest.approx(entropy(h, y, mu, Sigma, pi), rel=1e-4)
    assert options["only"]("params/Dense_0/kernel") and not options["only"]("params/head/kernel")
    np.testing.assert_allclose(upload.theta.params["Dense_0"]["bias"], w["bias"] + 0.125, rtol=1e-5)

    def adapted(h):
        examples = Batch(jnp.asarray(h), jnp.asarray(y), jnp.ones(len(y)))
        return pfedfda.adapted(server.features, examples, jnp.float32(pi), RIDGE)

    trained = np.maximum(x @ (w["kernel"] + 0.125) + w["bias"] + 0.125, 0)
    toys.close(upload.features, adapted(trained), rtol=1e-3, atol=1e-3)
    tuning = method.round[0]._replace(local=method.tune)
    tuned, *_ = local_work(method._replace(round=(tuning,)), server)
    toys.same(tuned.theta, server.theta)
    toys.close(tuned.features, adapted(h), rtol=1e-3, atol=1e-3)
    client = tree.take(make_population(toys.SKEWED, toys.K), 0)
    got = method.predict(server, client, jnp.asarray(x))
    np.testing.assert_allclose(got, logits(h, mu, Sigma, pi), rtol=1e-3, atol=1e-3)
