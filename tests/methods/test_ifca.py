"""Tests IFCA: rounds against NumPy, the model that a client takes, and the first models."""

import functools

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys

from fedjax_lab import evaluate, simulate, streams, tree

KEYS = naive.KEYS


def score(method, state):
    run = jax.jit(
        functools.partial(evaluate.score, simulate.Program(method, toys.PLAN, toys.VECTORIZED))
    )
    return run(simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS), state, 0)


def logits_of(w, rows):
    A, a, B, b = w
    return np.maximum(np.asarray(toys.FEDERATION.x)[rows] @ A + a, 0) @ B + b


@pytest.mark.slow
def test_ifca_against_numpy():
    method = toys.make("ifca", toys.TASK, num_clusters=3)
    state = simulate.init(method, KEYS, toys.C)
    params = tree.scale(0.1, state.server.params)
    params["head"]["bias"] = jnp.eye(3, toys.K)  # cluster k suits a client with much of class k
    start = state._replace(server=state.server._replace(params=params))
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
        got = naive.weights_of(tree.take(state.server, k))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_ifca_scores_a_client_with_its_best_fitting_model():
    """`tune` chooses by the training data, so that this holds for clients that never took part."""
    method = toys.make("ifca", toys.TASK, num_clusters=3)
    state = simulate.init(method, KEYS, toys.C)
    scores = score(method, state)
    for i in range(toys.C):
        centers = [naive.weights_of(tree.take(state.server, k)) for k in range(3)]
        best = min(centers, key=lambda w, i=i: naive.gradient(w, *naive.data_of(i))[0])
        rows = np.asarray(toys.FEDERATION.test[i])
        num_correct = (logits_of(best, rows).argmax(1) == np.asarray(toys.FEDERATION.y)[rows]).sum()
        assert int(scores.test.correct[i, 0]) == num_correct


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


@pytest.mark.slow
def test_ifca_averages_running_statistics_by_size():
    method = toys.make("ifca", toys.NORM, num_clusters=1)
    w = tree.repeat(toys.NORM.init(KEYS.init), 3)
    value = jnp.array([1.0, 2.0, 3.0])
    w = jax.tree.map(lambda a: a * 0 + value.reshape(-1, *[1] * (a.ndim - 1)), w)
    cohort = tree.take(toys.POPULATION, jnp.arange(3))._replace(n=jnp.array([10.0, 20.0, 70.0]))
    centers = simulate.init(method, KEYS, toys.C).server
    new = method.round[0].aggregate(centers, (jnp.zeros(3, int), w), cohort)
    np.testing.assert_allclose(new.params["head"]["bias"], 2.0, rtol=1e-6)
    np.testing.assert_allclose(new.stats["BatchNorm_0"]["var"], 2.6, rtol=1e-6)


def toys_keys():
    return streams.make_keys(jax.random.key(0))


def test_without_distinct_starts_all_clusters_start_equal():
    method = toys.make("ifca", num_clusters=2, distinct_starts=False)
    centers = simulate.init(method, toys_keys(), toys.C).server
    toys.same(tree.take(centers, 0), tree.take(centers, 1))


def test_ifca_scores_a_new_client_with_its_best_fitting_model():
    """The client chooses by its training data, and has no score before that."""
    method = toys.make("ifca", toys.TASK, num_clusters=3)
    state = simulate.init(method, KEYS, toys.C)
    params = tree.scale(0.1, state.server.params)
    params["head"]["bias"] = jnp.eye(3, toys.K)  # cluster k suits a client with much of class k
    state = state._replace(server=state.server._replace(params=params))
    federation = toys.with_new(toys.FEDERATION)
    new = jax.tree.map(jnp.asarray, simulate.new_on_host(federation, toys.K))
    lane = simulate.Lane(federation, toys.POPULATION, KEYS, new=new)
    program = simulate.Program(method, toys.PLAN, toys.VECTORIZED)
    scores = jax.jit(functools.partial(evaluate.score, program))(lane, state, 0)
    assert scores.new is None
    centers = [naive.weights_of(tree.take(state.server, k)) for k in range(3)]
    x, y = (np.asarray(a) for a in federation[:2])
    num_correct, picked = [], set()
    for train, test in zip(federation.new_train, federation.new_test, strict=True):
        train, test = (rows[rows >= 0] for rows in (train, test))
        losses = [naive.gradient(w, x[train], y[train])[0] for w in centers]
        picked.add(int(np.argmin(losses)))
        best = centers[int(np.argmin(losses))]
        num_correct.append(int((logits_of(best, test).argmax(1) == y[test]).sum()))
    assert scores.new_tuned.correct[:, 0].astype(int).tolist() == num_correct
    assert len(picked) > 1
