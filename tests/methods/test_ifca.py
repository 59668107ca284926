"""Tests IFCA: rounds against NumPy, the model that a client takes, and the first models."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from naive import KEYS
from rounds import scores

from fedjax_lab import tree
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.population import new_on_host


def suited_to_classes(state):
    """The state in which cluster k suits a client with much of class k."""
    params = optax.tree.scale(0.1, state.server.params)
    params["head"]["bias"] = jnp.eye(3, toys.K)
    return state._replace(server=state.server._replace(params=params))


@pytest.mark.slow
def test_ifca_against_numpy():
    method = toys.make("ifca", toys.TASK, num_clusters=3)
    start = suited_to_classes(simulate.init(method, KEYS, toys.C))
    centers = [naive.weights_of(tree.take(start.server, k)) for k in range(3)]
    for t in range(2):
        ids = naive.cohort(method, t)
        picked = {}
        for i in ids:
            k = int(np.argmin([naive.gradient(w, *naive.data_of(i))[0] for w in centers]))
            picked.setdefault(k, []).append(naive.sgd(centers[k], *naive.data_of(i)))
        assert len(picked) > 1 or t
        for k, models in picked.items():
            centers[k] = [np.mean(a, axis=0) for a in zip(*models, strict=True)]
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 2, start)
    for k, expected in enumerate(centers):
        naive.close(tree.take(state.server, k), expected)


@pytest.mark.slow
def test_ifca_starts_from_distinct_models_and_chooses_in_evaluation_mode():
    """Only the running statistics differ: in training mode both clusters would fit equally."""
    method = toys.make("ifca", toys.NORM, num_clusters=2)
    state = simulate.init(method, KEYS, toys.C)
    kernel = state.server.params["head"]["kernel"]
    assert not np.allclose(kernel[0], kernel[1])
    same_params = jax.tree.map(lambda a: jnp.stack([a[0], a[0]]), state.server.params)
    stats = state.server.stats["BatchNorm_0"]
    shifted = {**stats, "mean": stats["mean"].at[0].set(1e3)}  # ruins cluster 0 in evaluation mode
    server = state.server._replace(params=same_params, stats={"BatchNorm_0": shifted})
    picked = toys.player(method)(KEYS, 0, 1, state._replace(server=server))[0].private
    ids = naive.cohort(method, 0, toys.PLAN.cohort)
    assert [int(picked[i]) for i in ids] == [1] * len(ids)


def test_without_distinct_starts_all_clusters_start_equal():
    method = toys.make("ifca", num_clusters=2, distinct_starts=False)
    centers = simulate.init(method, KEYS, toys.C).server
    toys.same(tree.take(centers, 0), tree.take(centers, 1))


@pytest.mark.slow
def test_ifca_scores_a_new_client_with_its_best_fitting_model():
    """The client chooses by its training data, and has no score before that."""
    method = toys.make("ifca", toys.TASK, num_clusters=3)
    state = suited_to_classes(simulate.init(method, KEYS, toys.C))
    federation = toys.with_new(toys.FEDERATION)
    new = jax.tree.map(jnp.asarray, new_on_host(federation, toys.K))
    scored = scores(method, state, federation, new=new)
    assert scored.new is None
    centers = [naive.weights_of(tree.take(state.server, k)) for k in range(3)]
    x, y = (np.asarray(a) for a in federation[:2])
    num_correct, picked = [], set()
    for train, test in zip(federation.new_train, federation.new_test, strict=True):
        train, test = (rows[rows >= 0] for rows in (train, test))
        losses = [naive.gradient(w, x[train], y[train])[0] for w in centers]
        picked.add(int(np.argmin(losses)))
        best = centers[int(np.argmin(losses))]
        num_correct.append(int((naive.predict(best, x[test]) == y[test]).sum()))
    assert scored.new_tuned.correct[:, 0].astype(int).tolist() == num_correct
    assert len(picked) > 1
