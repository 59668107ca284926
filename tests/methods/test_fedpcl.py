"""Compares FedPCL with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import different_models, local_work

from fedjax_lab import tree
from fedjax_lab.methods.fedpcl import Server
from fedjax_lab.simulation.population import make_population

TAU = 0.3


def unit(w, x):
    """The outputs of a model, divided by their norms."""
    outputs = naive.logits(w, x)
    return outputs / np.linalg.norm(outputs, axis=1, keepdims=True)


def server():
    """Prototypes of all clients but the last; one class, and one more of client 1, have none."""
    rng = np.random.default_rng(0)
    has = np.ones((toys.C, toys.K))
    has[-1], has[:, -1], has[1, 0] = 0, 0, 0
    each = rng.normal(size=(toys.C, toys.K, toys.K)) * has[..., None]
    exists = np.float32([1, 1, 1, 0])
    C = rng.normal(size=(toys.K, toys.K)) * exists[:, None]
    return Server(*(jnp.asarray(a, jnp.float32) for a in (C, exists, each, has)))


def entropy(logits, y):
    """The cross-entropy of each example."""
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]


@pytest.mark.slow
def test_the_loss_and_the_prototypes_against_numpy():
    method = toys.make("fedpcl", toys.TASK, tau=TAU)
    message, (models, arrays) = server(), different_models()
    (C_i, has), kept, [(loss, w, _)], batch = local_work(method, message, tree.take(models, 0))
    x, y = naive.data_of(0, toys.SKEWED)
    z, counted = unit(arrays[0], x), y < 3
    C, each = np.asarray(message.C), np.asarray(message.each)
    padded = np.where(np.asarray(message.has)[..., None] > 0, each, C)[:, :3]
    expected = np.zeros(len(y))
    for share, P in [(1, C[:3]), *((1 / toys.C, P) for P in padded)]:
        expected[counted] += share * entropy(z[counted] @ P.T / TAU, y[counted])
    value, _ = loss(w, batch, jax.random.key(0))
    assert value == pytest.approx(expected.mean(), rel=1e-4)
    trained = unit(naive.weights_of(kept), x)
    for k in range(toys.K):
        assert has[k] == (k in y)
        if k in y:
            np.testing.assert_allclose(C_i[k], trained[y == k].mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_without_prototypes_there_is_no_loss():
    method = toys.make("fedpcl", toys.TASK)
    message = method.init(KEYS.init, toys.C).server
    w = toys.TASK.init(KEYS.init)
    _, _, [(loss, _, _)], batch = local_work(method, message, w)
    value, slope = jax.value_and_grad(lambda v: loss(v, batch, jax.random.key(0))[0])(w)
    assert value == 0 and not naive.vector(slope).any()


def test_a_client_predicts_one_of_its_classes_by_its_own_prototypes():
    method = toys.make("fedpcl", toys.TASK)
    message, (models, arrays) = server(), different_models()
    x, own = np.asarray(toys.FEDERATION.x[:40]), naive.counts(1) > 0
    client = tree.take(make_population(toys.SKEWED, toys.K), 1)
    got = method.predict(message, client._replace(private=tree.take(models, 1)), jnp.asarray(x))
    P = np.where(np.asarray(message.has)[1, :, None] > 0, message.each[1], message.C)
    expected = np.where(own, unit(arrays[1], x) @ P.T, -np.inf)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    cohort = tree.take(toys.POPULATION, jnp.array([5, 2]))
    has = jnp.float32([[1, 1, 0, 0], [0, 1, 0, 0]])
    sent = jnp.ones((2, toys.K, toys.K)) * jnp.array([1.0, 3.0])[:, None, None] * has[..., None]
    after = method.round[0].aggregate(message, (sent, has), cohort)
    np.testing.assert_allclose(after.C[:, 0], [1, 2, 0, 0])
    np.testing.assert_array_equal(after.exists, [1, 1, 0, 0])
    np.testing.assert_array_equal(after.each[5], sent[0])
    np.testing.assert_array_equal(after.each[0], message.each[0])
