"""DS-FL: a round of clients and server in NumPy, and what entropy reduction does."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import different_models
from scipy.special import log_softmax, softmax

from fedjax_lab import tree
from fedjax_lab.methods import ds_fl, fedmd
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.client_work import Public
from fedjax_lab.types import Batch

COUNT = 30
X = np.asarray(toys.FEDERATION.public[0])


def test_the_mean_prediction_is_sharpened():
    p = softmax(np.random.default_rng(0).normal(size=(3, 5, toys.K)), -1)
    z = ds_fl.sharpened(jnp.array([0.5, 0.0, 0.5]), jnp.float32(p), 0.1)
    mean = (p[0] + p[2]) / 2
    np.testing.assert_allclose(z, softmax(mean / 0.1, -1), rtol=1e-4)
    assert (np.max(z, -1) > mean.max(-1)).all()


def test_the_loss_of_the_distillation_against_numpy():
    w, z = toys.TASK.init(KEYS.init), np.float32(np.eye(toys.K)[[0, 2, 1]] * 0.6 + 0.1)
    mask = jnp.array([1.0, 1.0, 0.0])
    batch = Batch(jnp.asarray(X[:3]), jnp.zeros(3, int), mask, jnp.asarray(z))
    each = -(z * log_softmax(naive.logits(naive.weights_of(w), X[:3]), 1)).sum(1)
    got, _ = ds_fl.distillation(toys.TASK)(w, batch, None)
    assert got == pytest.approx(each[:2].mean(), rel=1e-5)


@pytest.mark.slow
def test_a_step_of_the_server_against_numpy():
    method = toys.make("ds_fl", toys.TASK, subset=COUNT, server_steps=1, server_lr=0.5)
    server = method.init(KEYS.init, toys.C).server
    z = softmax(3 * np.random.default_rng(1).normal(size=(COUNT, toys.K)), 1)
    cohort = tree.take(toys.POPULATION, jnp.arange(2))._replace(
        key=jnp.stack([KEYS.local] * 2), public=Public(toys.FEDERATION, toys.PLAN)
    )
    after = method.round[1].aggregate(server._replace(z=jnp.float32(z)), (), cohort)
    places = np.asarray(fedmd.drawn(server.key, len(X), COUNT))
    some = jax.random.randint(jax.random.fold_in(KEYS.local, 0), (ds_fl.BATCH,), 0, COUNT)
    w, x = naive.weights_of(server.w_S), X[places[np.asarray(some)]]
    g = naive.backward(w, x, (naive.probabilities(w, x) - z[np.asarray(some)]) / len(x))
    naive.close(after.w_S, naive.add(w, g, -0.5))


@pytest.mark.slow
def test_a_round_of_the_clients_against_numpy():
    """A step of the distillation uses the whole subset."""
    method = toys.make("ds_fl", toys.TASK, subset=COUNT, distill_epochs=2, server_steps=0)
    models, lists = different_models()
    first = simulate.init(method, KEYS, toys.C)._replace(private=models)
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 1, first)
    x = X[np.asarray(fedmd.drawn(first.server.next_key, len(X), COUNT))]
    trained = [naive.sgd(w, *naive.data_of(i)) for i, w in enumerate(lists)]
    z = softmax(sum(naive.probabilities(w, x) for w in trained) / toys.C / 0.1, 1)
    np.testing.assert_allclose(state.server.z, z, rtol=1e-2, atol=1e-3)
    for i, w in enumerate(trained):

        def gradient(v):
            return naive.backward(v, x, (naive.probabilities(v, x) - z) / COUNT)

        expected = naive.descend(w, gradient, steps=2)
        naive.close(tree.take(state.private, i), expected, 1e-2, 2e-3)
