"""Tests FedProto against local training and NumPy, and its prototypes."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from naive import KEYS
from rounds import one_client

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.models import cct, nets
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.client_work import make_work
from fedjax_lab.simulation.population import make_population


def fedproto_by_hand(method, count, lam):
    """Returns the models, the prototypes and which classes have one, after `count` rounds."""
    first = naive.weights_of(tree.take(simulate.init(method, KEYS, toys.C).private, 0))
    models, C, has_prototype = [first] * toys.C, np.zeros((toys.K, 16)), np.zeros(toys.K, bool)
    for t in range(count):
        sent = [[] for _ in range(toys.K)]
        for i in naive.cohort(method, t):
            x, y = naive.data_of(i, toys.SKEWED)

            def pull(z, y=y, C=C, has_prototype=has_prototype):
                return lam * 2 * (z - C[y]) * has_prototype[y][:, None] / z.size

            step = lambda v, x=x, y=y, pull=pull: naive.gradient(v, x, y, pull=pull)[1]  # noqa: E731
            models[i] = naive.descend(models[i], step)
            h = naive.features(models[i], x)
            for k in set(y):
                sent[k].append(h[y == k].mean(0))
        has_prototype = np.array([len(s) > 0 for s in sent])
        C = np.stack([np.mean(s, 0) if s else np.zeros(16) for s in sent])
    return models, C, has_prototype


@pytest.mark.slow
def test_fedproto_against_numpy():
    """In the first round there are no prototypes, so that the term has no effect."""
    method = toys.make("fedproto", toys.TASK, lam=2.0)
    models, C, has_prototype = fedproto_by_hand(method, 4, 2.0)
    state, _ = toys.player(method, plan=naive.FULL, federation=toys.SKEWED)(KEYS, 0, 4)
    np.testing.assert_allclose(state.server[0], C, rtol=1e-3, atol=1e-4)
    assert (np.asarray(state.server[1]) > 0).tolist() == has_prototype.tolist()
    for i in range(toys.C):
        naive.close(tree.take(state.private, i), models[i], rtol=1e-3, atol=1e-4)


def test_fedproto_forgets_the_prototypes_of_absent_classes():
    method = toys.make("fedproto")
    D = 16
    uploads = jnp.ones((2, toys.K, D)) * jnp.array([1.0, 3.0])[:, None, None]
    has = jnp.zeros((2, toys.K)).at[:, 0].set(1).at[1, 2].set(1)
    cohort = tree.take(toys.POPULATION, jnp.arange(2))
    C, has_prototype = method.round[0].aggregate(
        (9 * jnp.ones((toys.K, D)), jnp.ones(toys.K)), (uploads, has), cohort
    )
    np.testing.assert_allclose(C[:, 0], [2, 0, 3, 0])
    np.testing.assert_array_equal(has_prototype, [1, 0, 1, 0])


@pytest.mark.slow
def test_fedproto_predicts_by_the_nearest_prototype_of_the_clients_classes():
    method = toys.make("fedproto", toys.TASK, prediction="prototype")
    models, C, has_prototype = fedproto_by_hand(method, 3, 1.0)
    assert not has_prototype.all()
    state, _ = toys.player(method, plan=naive.FULL, federation=toys.SKEWED)(KEYS, 0, 3)
    population = make_population(toys.SKEWED, toys.K)._replace(private=state.private)
    x = np.asarray(toys.FEDERATION.x[400:])
    for i in range(toys.C):
        distance = ((naive.features(models[i], x)[:, None] - C) ** 2).sum(-1)
        distance[:, (naive.counts(i) == 0) | ~has_prototype] = np.inf
        got = method.predict(state.server, tree.take(population, i), x).argmax(-1)
        assert (np.asarray(got) == distance.argmin(1)).mean() > 0.99
    assert min(naive.counts(i).min() for i in range(toys.C)) == 0


def test_prototypes_are_computed_in_evaluation_mode():
    method = toys.make("fedproto")
    state = simulate.init(method, KEYS, toys.C)
    (C, _), w = one_client(method.round[0].local, state.server, 0, tree.take(state.private, 0))
    x, y = naive.data_of(0)
    h = np.asarray(toys.NORM.apply(w, x).features)
    expected = [h[y == k].mean(0) for k in range(toys.K)]
    np.testing.assert_allclose(C, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
def test_head_layers_moves_the_prototypes_to_an_earlier_layer():
    """h is the input of the second of two hidden layers; the term changes the first alone."""
    task = make_task(nets.mlp(toys.K, width=16, depth=2), (toys.D,), toys.K)
    method, without_term = (
        toys.make("fedproto", task, lam=lam, head_layers=2) for lam in (0.5, 0.0)
    )
    state = simulate.init(method, KEYS, toys.C)
    work, _ = make_work(toys.FEDERATION, toys.FEDERATION.train[0], toys.PLAN, KEYS.local)
    client = tree.take(toys.POPULATION._replace(private=state.private), 0)
    sent = jnp.full((toys.K, 16), 5.0), jnp.ones(toys.K)
    (C, _), w = one_client(method.round[0].local, sent, 0, client.private)
    p = jax.tree.map(np.asarray, w.params)
    x, y = naive.data_of(0)
    h = np.maximum(x @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"], 0)
    expected = [h[y == k].mean(0) for k in range(toys.K)]
    np.testing.assert_allclose(C, expected, rtol=1e-4, atol=1e-5)
    gradients = {}

    def record_gradient(weights, loss):
        batch = work.draw(8)
        gradients["g"] = jax.grad(lambda v: loss(v, batch, jax.random.key(0))[0])(weights).params
        return weights

    for each in (method, without_term):
        each.round[0].local(sent, client, work._replace(train=record_gradient))
        gradients[each] = gradients["g"]
    pulled, free = gradients[method], gradients[without_term]
    toys.close(pulled["Dense_1"], free["Dense_1"])
    toys.close(pulled["head"], free["head"])
    assert float(tree.sq_norm(optax.tree.sub(pulled["Dense_0"], free["Dense_0"]))) > 1e-8
    tokens = make_task(cct.cct7(toys.K), (32, 32, 3), toys.K)
    with pytest.raises(BadInput, match="head_layers=2: .* must get a vector"):
        toys.make("fedproto", tokens, head_layers=2)
