"""FedCross: plain NumPy, how models are dealt to clients, and FedAvg as a special case."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import rounds
import toys
from naive import KEYS
from slow_cases import exhaustive_but

from fedjax_lab import sampling, tree
from fedjax_lab.methods import fedcross
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.simulation import failures

K = 4
COHORT = tree.take(toys.POPULATION, jnp.array([6, 1, 3, 0, 7]))
COHORT = COHORT._replace(weight=COHORT.n / COHORT.n.sum(), key=tree.repeat(KEYS.init, 5))
MODEL = jnp.array([1, 0, 2, 2, 2, 0, 1, 3])  # of each client
ARRIVED = jnp.array([True, True, False, True, True])  # model 2 loses its only upload


def aggregated(models, **settings):
    """The server after a round in which client k of the cohort has sent model 7 - k."""
    (exchange,) = toys.make("fedcross", toys.TASK, models=K, **settings).round
    w = tree.take(models, jnp.arange(K))
    server = fedcross.Server(w, jnp.arange(toys.C), MODEL, jnp.int32(4))
    uploads = tree.take(models, jnp.array([7, 6, 5, 4, 3]))
    return exchange.aggregate(server, *failures.received(uploads, COHORT, ARRIVED))


def collaborators(collaborator, v):
    """co(j) of models that are lists of arrays, in round 4."""
    if collaborator == "in_order":
        return [2, 3, 0, 1]  # 4 mod (4 - 1) + 1 = 2 further
    flat = np.array([np.concatenate([a.ravel() for a in w]) for w in v])
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    near = flat @ flat.T
    if collaborator == "highest":
        return (near - 9 * np.eye(K)).argmax(1)
    return (near + 9 * np.eye(K)).argmin(1)


@pytest.mark.parametrize("collaborator", fedcross.COLLABORATORS)
def test_collaborators_against_numpy(collaborator):
    v = np.random.default_rng(2).normal(size=(K, 3)).astype(np.float32)
    co = fedcross.chosen(collaborator, [jnp.asarray(v)], jnp.int32(4))
    assert co.tolist() == list(collaborators(collaborator, [[a] for a in v]))


@pytest.mark.parametrize("collaborator", exhaustive_but(["lowest"], fedcross.COLLABORATORS))
def test_a_round_of_the_server_against_numpy(collaborator):
    models, arrays = rounds.different_models()
    server = aggregated(models, collaborator=collaborator, alpha=0.7)
    n = np.asarray(COHORT.n)[[0, 3]]
    v = [arrays[6], naive.mean(n / n.sum(), [arrays[7], arrays[4]]), arrays[2], arrays[3]]
    for j, co in enumerate(collaborators(collaborator, v)):
        expected = [0.7 * a + 0.3 * b for a, b in zip(v[j], v[co], strict=True)]
        naive.close(tree.take(server.w, j), expected)
    assert server.t == 5
    mean = naive.mean(
        np.full(K, 1 / K), [naive.weights_of(tree.take(server.w, j)) for j in range(K)]
    )
    naive.close(fedcross.global_model(server), mean)


@pytest.mark.slow
def test_with_alpha_one_models_are_not_mixed():
    models, _ = rounds.different_models()
    server = aggregated(models, alpha=1.0)
    toys.close(tree.take(server.w, jnp.array([0, 2, 3])), tree.take(models, jnp.array([6, 2, 3])))


@pytest.mark.slow
def test_a_single_model_is_aggregated_as_in_fedavg():
    models, _ = rounds.different_models()
    method = toys.make("fedcross", toys.TASK, models=1, alpha=0.7)
    server, uploads = method.init(KEYS.init, toys.C).server, tree.take(models, jnp.arange(5))
    server = method.round[0].aggregate(server, uploads, COHORT)
    expected = fedavg(toys.TASK).round[0].aggregate(None, uploads, COHORT)
    toys.close(fedcross.global_model(server), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_a_run_with_a_single_model_is_one_of_fedavg():
    method = toys.make("fedcross", models=1)._replace(sample=sampling.by_size)
    state, _ = toys.player(method)(KEYS, 0, 3)
    expected = rounds.averaged()[0].server
    toys.close(fedcross.global_model(state.server), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_the_clients_of_a_round_get_different_models_and_all_are_drawn_alike():
    """A round has as many clients as there are models; 200 deals."""
    deal = jax.vmap(lambda key: fedcross.dealt(key, K, toys.C))
    order, model = (np.asarray(a) for a in deal(jax.random.split(KEYS.init, 200)))
    drawn = np.take_along_axis(model, order[:, :K], 1)
    assert (np.sort(drawn) == np.arange(K)).all()
    counts = [np.bincount(a[:, :K].ravel(), minlength=toys.C) for a in (order, model)]
    assert (np.abs(counts[0] - 100) < 35).all()
    assert (np.abs(counts[1][:K] - 200) < 50).all()
    server = fedcross.Server(None, jnp.asarray(order[0]), jnp.asarray(model[0]), jnp.int32(0))
    ids, shares = fedcross.sample(None, server, toys.POPULATION, 3)
    n = np.asarray(toys.POPULATION.n)[order[0, :3]]
    assert ids.tolist() == order[0, :3].tolist()
    np.testing.assert_allclose(shares, n / n.sum(), rtol=1e-6)
