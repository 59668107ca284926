"""Compares averages inside clusters, and the classifier on their encoders, with NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from rounds import averages

from fedjax_lab import tree
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.models.task import encode, split_head
from fedjax_lab.papers.fedconcat import concatenation
from fedjax_lab.types import State

MEMBER = np.array([[1, 0, 0, 1, 0, 0, 1, 0], [0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 0, 1]])


@pytest.mark.slow
def test_a_round_inside_clusters_against_numpy():
    """Two rounds of three clients, in which some cluster has no participant."""
    method = concatenation.inside_clusters(toys.TASK, 0.05)
    w = toys.TASK.init(naive.KEYS.init)
    state = State(concatenation.Clusters(tree.repeat(w, 3), jnp.asarray(MEMBER, jnp.float32)), ())
    centers = [naive.first_weights() for _ in range(3)]
    state, _ = toys.player(method, plan=naive.FULL)(naive.KEYS, 0, 2, state)
    for t in range(2):
        ids = drawn(t)
        models = [
            naive.sgd(
                centers[int(MEMBER[:, i].argmax())], *naive.data_of(i), decay=naive.DECAY + 0.05
            )
            for i in ids
        ]
        centers = averages(MEMBER, ids, models, centers)
    assert any(not MEMBER[k][drawn(0)].any() for k in range(3))  # a cluster without participants
    for k in range(3):
        naive.close(tree.take(state.server.centers, k), centers[k])


def drawn(t):
    return naive.cohort(toys.make("fedavg"), t)


def test_a_round_of_the_classifier_against_numpy():
    """It is the unweighted mean of unequal clients' models; the encoders are unchanged."""
    method = concatenation.on_features(toys.K)
    phi = concatenation.linear(toys.D, toys.K).init(naive.KEYS.init)
    encoders = toys.TASK.init(naive.KEYS.init)
    state = State(concatenation.Concatenation(encoders, phi), ())
    state, sums = toys.player(method, plan=naive.FULL)(naive.KEYS, 0, 1, state)
    head = [np.asarray(phi.params["head"][name]) for name in ("kernel", "bias")]

    def gradient(w, x, y):
        logits = x @ w[0] + w[1]
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        d = (p - np.eye(toys.K)[y]) / len(y)
        return [x.T @ d, d.sum(0)]

    models = []
    for i in drawn(0):
        x, y = naive.data_of(i)
        models.append(naive.descend(head, lambda w: gradient(w, x, y), steps=1))  # noqa: B023
    expected = naive.mean(np.full(3, 1 / 3), models)
    after = state.server.classifier.params["head"]
    np.testing.assert_allclose(after["kernel"], expected[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after["bias"], expected[1], rtol=1e-4, atol=1e-6)
    toys.same(state.server.encoders, encoders)
    assert float(sums.steps) == 3


def test_an_epoch_of_the_classifier_ends_after_three_batches():
    method = concatenation.on_features(toys.K)
    phi = concatenation.linear(toys.D, toys.K).init(naive.KEYS.init)
    state = State(concatenation.Concatenation((), phi), ())
    plan = toys.PLAN._replace(batch_size=4, cohort=toys.C)
    _, sums = toys.player(method, plan=plan)(naive.KEYS, 0, 1, state)
    n = np.asarray(toys.POPULATION.n)
    assert float(sums.steps) == np.minimum(3, np.ceil(n / 4)).sum()
    assert float(sums.examples) == np.minimum(12, n).sum()


def test_features_are_the_concatenated_outputs_of_the_encoders():
    """They are [theta^1(x), theta^2(x)] in evaluation mode, computed in one forward pass."""
    models = clusters.distinct_starts(toys.NORM, jax.random.key(0), 2)
    encoders, heads = split_head(toys.NORM, models)
    x = toys.FEDERATION.x[:7]
    h = jax.jit(lambda e: concatenation.concatenate(toys.NORM, e, x))(encoders)
    alone = [toys.NORM.apply(tree.take(models, k), x).features for k in range(2)]
    np.testing.assert_allclose(h, np.concatenate(alone, 1), rtol=1e-5, atol=1e-6)
    toys.same(encode(toys.NORM, tree.take(encoders, 1), x), alone[1])
    assert heads.params["Dense_0"]["kernel"] is None
    calls = [
        str(jax.make_jaxpr(lambda e: concatenation.concatenate(toys.NORM, e, x))(e)).count("dot_g")
        for e in (encoders, tree.take(encoders, jnp.array([0, 1, 0, 1])))
    ]
    assert calls[0] == calls[1]


def test_a_classifier_that_starts_from_the_clusters_sums_their_logits():
    models = clusters.distinct_starts(toys.NORM, jax.random.key(0), 3)
    stage = concatenation.concatenation(toys.NORM, 1, "clusters", "exact")
    server = stage.start(jax.random.key(0), toys.C, State(models, ()), {}).server
    x = toys.FEDERATION.x[:7]
    logits = stage.method.predict(server.classifier, None, stage.view(server.encoders, x))
    alone = [toys.NORM.apply(tree.take(models, k), x).logits for k in range(3)]
    np.testing.assert_allclose(logits, sum(alone), rtol=1e-4, atol=1e-5)
