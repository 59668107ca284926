"""Exact identities between methods, then naive NumPy rounds, then each method's own behaviour."""

import functools

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys

from fedjax_lab import evaluate, losses, simulate, tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.fedper import partly_private

KEYS = naive.KEYS


@pytest.fixture(scope="module")
def averaged():
    """FedAvg after three rounds."""
    return toys.player(toys.make("fedavg"))(KEYS, 0, 3)


def test_fedprox_without_mu_is_fedavg(averaged):
    toys.same(toys.player(toys.make("fedprox", mu=0.0))(KEYS, 0, 3), averaged)


def test_fedprox_with_mu_is_not(averaged):
    state, _ = toys.player(toys.make("fedprox", mu=0.5))(KEYS, 0, 3)
    assert not np.allclose(
        state.server.params["head"]["kernel"],
        averaged[0].server.params["head"]["kernel"],
        atol=1e-3,
    )


def test_fedper_with_nothing_private_is_fedavg(averaged):
    state, sums = toys.player(partly_private(toys.NORM, lambda name: False))(KEYS, 0, 3)
    toys.same((state.server, sums), (averaged[0].server, averaged[1]))


def test_fedbn_on_a_net_without_norm_layers_is_fedavg():
    a = toys.player(toys.make("fedbn", toys.TASK))(KEYS, 0, 3)
    b = toys.player(toys.make("fedavg", toys.TASK))(KEYS, 0, 3)
    toys.same(a[0].server.params, b[0].server.params)


def test_ifca_with_one_cluster_is_fedavg(averaged):
    method = toys.make("ifca", num_clusters=1, by_size=True)
    state, _ = toys.player(method)(KEYS, 0, 3)
    toys.close(jax.tree.map(lambda a: a[0], state.server), averaged[0].server)


def test_fedbn_keeps_the_norm_layers_at_home():
    state, _ = toys.player(toys.make("fedbn"))(KEYS, 0, 3)
    private, shared = tree.names(state.private), tree.names(state.server)
    assert {name.split("/")[1] for name in private} == set(toys.NORM.batch_norms)
    assert {name.split("/")[0] for name in private} == {"params", "stats"}
    assert not any("BatchNorm" in name for name in shared)
    scale = state.private.params["BatchNorm_0"]["scale"]
    assert np.ptp(scale, axis=0).max() > 0  # clients differ


def test_first_weights_and_cohorts_do_not_depend_on_the_method():
    one = simulate.init(toys.make("fedavg"), KEYS, toys.C).server
    toys.same(simulate.init(toys.make("fedprox"), KEYS, toys.C).server, one)
    many = simulate.init(toys.make("ifca"), KEYS, toys.C).server
    toys.same(jax.tree.map(lambda a: a[0], many), one)
    own = simulate.init(toys.make("local"), KEYS, toys.C).private
    toys.same(jax.tree.map(lambda a: a[4], own), one)


def test_hyperparameters_may_be_traced(averaged):
    federation, people, plan = toys.pooled(toys.make("fedavg"))

    def run(mu):
        method = toys.make("fedprox", mu=mu)
        state = simulate.init(method, KEYS, toys.C)
        args = federation, people, KEYS, state, simulate.no_progress(), 0, 3
        return simulate.play(method, plan, toys.VECTORISED, *args)[0]

    grid = jax.jit(jax.vmap(run))(jnp.array([0.0, 0.1]))
    toys.close(jax.tree.map(lambda a: a[0], grid), averaged[0])


def score(method, state):
    run = jax.jit(functools.partial(evaluate.score, method, toys.PLAN, toys.VECTORISED))
    return run(toys.FEDERATION, toys.PEOPLE, KEYS, state, 0)


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_two_rounds_against_numpy(mu):
    """FedAvg and FedProx with three of eight unequal clients a round."""
    method = toys.make("fedprox", toys.TASK, mu=mu)
    w = naive.weights_of(simulate.init(method, KEYS, toys.C).server)
    for t in range(2):
        ids = naive.cohort(method, t)
        assert len(set(ids)) == 3
        pull = lambda v, w=w: [mu * (a - b) for a, b in zip(v, w, strict=True)]  # noqa: E731
        w = naive.mean_by_size(ids, [naive.sgd(w, *naive.data_of(i), pull) for i in ids])
    state, sums = toys.player(method, plan=naive.FULL)(KEYS, 0, 2)
    naive.close(state.server, w)
    assert float(sums.steps) == 2 * 3 * naive.STEPS


def test_the_training_loss_is_the_cohorts_mean_by_share():
    """One full-batch step each: the losses of the sent model, weighted by size."""
    method = toys.make("fedavg", toys.TASK)
    w = naive.weights_of(simulate.init(method, KEYS, toys.C).server)
    ids = naive.cohort(method, 0)
    n = np.array([len(naive.data_of(i)[1]) for i in ids])
    expected = np.average([naive.gradient(w, *naive.data_of(i))[0] for i in ids], weights=n)
    _, sums = toys.player(method, plan=naive.FULL._replace(epochs=1))(KEYS, 0, 1)
    assert float(sums.train_loss) == pytest.approx(expected, rel=1e-5)
    assert float(sums.examples) == n.sum()


def test_ifca_round_against_numpy():
    method = toys.make("ifca", toys.TASK, num_clusters=3)
    state = simulate.init(method, KEYS, toys.C)
    params = tree.scale(0.1, state.server.params)
    params["head"]["bias"] = jnp.eye(3, toys.K)  # cluster k suits a client with much of class k
    start = state._replace(server=state.server._replace(params=params))
    centres = [naive.weights_of(tree.take(start.server, k)) for k in range(3)]
    for t in range(2):
        ids = naive.cohort(method, t)
        picked = {}
        for i in ids:
            k = int(np.argmin([naive.gradient(w, *naive.data_of(i))[0] for w in centres]))
            picked.setdefault(k, []).append(naive.sgd(centres[k], *naive.data_of(i)))
        assert len(picked) > 1 or t
        for k, models in picked.items():
            centres[k] = [np.mean(a, axis=0) for a in zip(*models, strict=True)]
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 2, start)
    for k, expected in enumerate(centres):
        got = naive.weights_of(tree.take(state.server, k))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_ifca_scores_a_client_on_the_model_that_fits_it_best():
    """Also one that never took part: `tune` asks its training data, not its memory."""
    method = toys.make("ifca", toys.TASK, num_clusters=3)
    state = simulate.init(method, KEYS, toys.C)
    scores = score(method, state)
    for i in range(toys.C):
        centres = [naive.weights_of(tree.take(state.server, k)) for k in range(3)]
        best = min(centres, key=lambda w, i=i: naive.gradient(w, *naive.data_of(i))[0])
        rows = np.asarray(toys.FEDERATION.test[i])
        A, a, B, b = best
        logits = np.maximum(np.asarray(toys.FEDERATION.x)[rows] @ A + a, 0) @ B + b
        right = (logits.argmax(1) == np.asarray(toys.FEDERATION.y)[rows]).sum()
        assert int(scores.test.right[i, 0]) == right


def test_ifca_starts_from_distinct_models_and_measures_in_evaluation_mode():
    """Running statistics decide: in training mode both of these clusters would fit alike."""
    method = toys.make("ifca", toys.NORM, num_clusters=2)
    state = simulate.init(method, KEYS, toys.C)
    kernel = state.server.params["head"]["kernel"]
    assert not np.allclose(kernel[0], kernel[1])
    same_params = jax.tree.map(lambda a: jnp.stack([a[0], a[0]]), state.server.params)
    stats = state.server.stats["BatchNorm_0"]
    far = {**stats, "mean": stats["mean"].at[0].set(1e3)}  # ruins cluster 0 in evaluation mode
    server = state.server._replace(params=same_params, stats={"BatchNorm_0": far})
    picked = toys.player(method)(KEYS, 0, 1, state._replace(server=server))[0].private
    ids = naive.cohort(method, 0, toys.PLAN.cohort)
    assert [int(picked[i]) for i in ids] == [1] * len(ids)


@pytest.mark.parametrize("name", ["fedbn", "local"])
def test_a_client_is_scored_on_its_own_model(name):
    """What is private belongs to one client: its own hits, by hand, differ from its neighbour's."""
    method = toys.make(name)
    state = simulate.init(method, KEYS, toys.C)
    far_apart = jax.tree.map(
        lambda a: a + jax.random.uniform(KEYS.local, a.shape, a.dtype, 0, 3), state.private
    )
    state = state._replace(private=far_apart)
    scores = score(method, state)

    def right(i, rows):
        mine = jax.tree.map(lambda a: a[i], state.private)
        w = tree.join(state.server, mine) if name == "fedbn" else mine
        logits = toys.NORM.apply(w, toys.FEDERATION.x[rows]).logits
        return int((logits.argmax(1) == toys.FEDERATION.y[rows]).sum())

    own = [right(i, toys.FEDERATION.test[i]) for i in range(toys.C)]
    others = [right((i + 1) % toys.C, toys.FEDERATION.test[i]) for i in range(toys.C)]
    assert own == scores.test.right[:, 0].astype(int).tolist()
    assert own != others


def test_ifca_averages_running_statistics_by_size():
    method = toys.make("ifca", toys.NORM, num_clusters=1)
    w = tree.repeat(toys.NORM.init(KEYS.init), 3)
    value = jnp.array([1.0, 2.0, 3.0])
    w = jax.tree.map(lambda a: a * 0 + value.reshape(-1, *[1] * (a.ndim - 1)), w)
    people = tree.take(toys.PEOPLE, jnp.arange(3))._replace(n=jnp.array([10.0, 20.0, 70.0]))
    centres = simulate.init(method, KEYS, toys.C).server
    new = method.round[0].aggregate(centres, (jnp.zeros(3, int), w), people)
    np.testing.assert_allclose(new.params["head"]["bias"], 2.0, rtol=1e-6)
    np.testing.assert_allclose(new.stats["BatchNorm_0"]["var"], 2.6, rtol=1e-6)


def test_local_keeps_each_clients_running_statistics():
    stats = toys.player(toys.make("local"))(KEYS, 0, 1)[0].private.stats["BatchNorm_0"]["mean"]
    assert float(jnp.abs(stats).max(1).min()) > 0.01  # all have moved
    assert len(np.unique(np.asarray(stats), axis=0)) == toys.C


def test_an_exchange_that_only_measures_changes_nothing(averaged):
    """Two exchanges; the last one shuffles as the only one of FedAvg does, bit for bit."""
    one = fedavg(toys.NORM)
    measure = one.round[0]._replace(
        local=lambda w, client, work: (work.mean(lambda b: b.x.sum()), client.private),
        aggregate=lambda w, uploads, cohort: w,
    )
    two = one._replace(round=(measure, *one.round))
    toys.same(toys.player(two)(KEYS, 0, 3), averaged)


def test_local_never_communicates():
    method = toys.make("local", toys.TASK)
    first = naive.first_weights()
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 1)
    for i in (0, 5):  # everyone trains, whatever the cohort
        expected = naive.sgd(first, *naive.data_of(i))
        got = naive.weights_of(tree.take(state.private, i))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_central_is_one_client_with_everything():
    method = toys.make("central", toys.TASK)
    federation, people, plan = toys.pooled(method)
    plan = naive.FULL._replace(batch_size=federation.train.shape[1], cohort=1)
    state, _ = toys.player(method, plan=plan)(KEYS, 0, 1)
    rows = np.asarray(toys.FEDERATION.train)
    rows = rows[rows >= 0]
    assert float(people.n[0]) == len(rows)
    x, y = np.asarray(toys.FEDERATION.x)[rows], np.asarray(toys.FEDERATION.y)[rows]
    first = naive.first_weights()
    naive.close(state.server, naive.sgd(first, x, y))


def test_fedprox_gradient_is_finite_at_the_start():
    w = toys.TASK.init(KEYS.init)
    value = lambda p: tree.sq_norm(tree.sub(p, w.params))  # noqa: E731
    assert tree.finite(jax.grad(value)(w.params))


def test_a_padded_batch_loses_nothing():
    """The risk of a padded batch is that of its rows alone."""
    from fedjax_lab.local import fetch

    rows = toys.FEDERATION.train[0]
    real = rows[rows >= 0]
    w, risk = toys.NORM.init(KEYS.init), losses.risk(toys.NORM)
    padded = risk(w, fetch(toys.FEDERATION, rows, toys.PLAN), KEYS.local)
    alone = risk(w, fetch(toys.FEDERATION, real, toys.PLAN), KEYS.local)
    assert len(real) < len(rows)
    toys.close(padded, alone, rtol=1e-5, atol=1e-6)
