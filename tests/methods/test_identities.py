"""Tests that methods are equal to others in special cases."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import rounds
import toys

from fedjax_lab import simulate, streams, tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.fedper import partly_private

KEYS = naive.KEYS


@pytest.mark.slow
@pytest.mark.parametrize("name, hyper", [("fedlc", {"tau": 0.0}), ("fedrs", {"alpha": 1.0})])
def test_fedlc_with_tau_0_and_fedrs_with_alpha_1_are_fedavg(name, hyper):
    method = toys.make(name, **hyper)
    toys.same(toys.player(method, federation=toys.SKEWED)(KEYS, 0, 3), rounds.averaged(True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, hyper", [("fedavgm", {}), ("fedopt", {}), ("scaffold", {"server_lr": 0.5})]
)
def test_running_statistics_are_averaged_by_size_without_momentum(name, hyper):
    """This includes a second round, with momentum at the server and clients as in FedAvg."""
    method = toys.make(name, **hyper)
    play = toys.player(method)
    state, _ = play(KEYS, 0, 1)
    if name == "scaffold":  # without control variates
        zero = jax.tree.map(jnp.zeros_like, (state.server[1], state.private))
        state = state._replace(server=(state.server[0], zero[0]), private=zero[1])
    plain = simulate.State(state.server[0], ())
    plain, _ = toys.player(toys.make("fedavg"))(KEYS, 1, 1, plain)
    state, _ = play(KEYS, 1, 1, state)
    toys.same(state.server[0].stats, plain.server.stats)
    difference = tree.sub(state.server[0].params, plain.server.params)
    assert float(tree.sq_norm(difference)) > 1e-3


@pytest.fixture(scope="module")
def averaged():
    """The state and sums of FedAvg after three rounds."""
    return toys.player(toys.make("fedavg"))(KEYS, 0, 3)


@pytest.mark.slow
def test_fedprox_with_mu_0_is_fedavg(averaged):
    toys.same(toys.player(toys.make("fedprox", mu=0.0))(KEYS, 0, 3), averaged)


@pytest.mark.slow
def test_fedprox_with_mu_above_0_is_not_fedavg(averaged):
    state, _ = toys.player(toys.make("fedprox", mu=0.5))(KEYS, 0, 3)
    assert not np.allclose(
        state.server.params["head"]["kernel"],
        averaged[0].server.params["head"]["kernel"],
        atol=1e-3,
    )


def test_fedper_with_nothing_private_is_fedavg(averaged):
    state, sums = toys.player(partly_private(toys.NORM, lambda name: False))(KEYS, 0, 3)
    toys.same((state.server, sums), (averaged[0].server, averaged[1]))


@pytest.mark.slow
def test_fedbn_on_a_net_without_norm_layers_is_fedavg():
    a = toys.player(toys.make("fedbn", toys.TASK))(KEYS, 0, 3)
    b = toys.player(toys.make("fedavg", toys.TASK))(KEYS, 0, 3)
    toys.same(a[0].server.params, b[0].server.params)


@pytest.mark.slow
def test_ifca_with_one_cluster_is_fedavg(averaged):
    method = toys.make("ifca", num_clusters=1, by_size=True)
    state, _ = toys.player(method)(KEYS, 0, 3)
    toys.close(jax.tree.map(lambda a: a[0], state.server), averaged[0].server)


def test_first_weights_do_not_depend_on_the_method():
    one = simulate.init(toys.make("fedavg"), KEYS, toys.C).server
    toys.same(simulate.init(toys.make("fedprox"), KEYS, toys.C).server, one)
    many = simulate.init(toys.make("ifca"), KEYS, toys.C).server
    toys.same(jax.tree.map(lambda a: a[0], many), one)
    private = simulate.init(toys.make("local"), KEYS, toys.C).private
    toys.same(jax.tree.map(lambda a: a[4], private), one)


@pytest.mark.slow
def test_hyperparameters_may_be_traced(averaged):
    federation, population, plan = toys.pooled(toys.make("fedavg"))

    def run(mu):
        method = toys.make("fedprox", mu=mu)
        state = simulate.init(method, KEYS, toys.C)
        args = simulate.Lane(federation, population, KEYS), state, simulate.no_progress(), 0, 3
        return simulate.play(simulate.Program(method, plan, toys.VECTORIZED), *args)[0]

    grid = jax.jit(jax.vmap(run))(jnp.array([0.0, 0.1]))
    toys.close(jax.tree.map(lambda a: a[0], grid), averaged[0])


@pytest.mark.slow
def test_an_exchange_that_only_measures_does_not_change_training(averaged):
    """The last of two exchanges shuffles exactly as the only one of FedAvg."""
    one = fedavg(toys.NORM)
    measure = one.round[0]._replace(
        local=lambda w, client, work: (work.mean(lambda b: b.x.sum()), client.private),
        aggregate=lambda w, uploads, cohort: w,
    )
    two = one._replace(round=(measure, *one.round))
    toys.same(toys.player(two)(KEYS, 0, 3), averaged)


@pytest.mark.slow
def test_fesem_and_fedsoft_with_one_cluster_and_mu_0_are_fedavg():
    plain, _ = toys.player(toys.make("fedavg"))(toys_keys(), 0, 3)
    for name in ("fesem", "fedsoft"):
        method = toys.make(name, num_clusters=1, mu=0.0)
        state, _ = toys.player(method)(toys_keys(), 0, 3)
        toys.close(tree.take(state.server.centers, 0), plain.server, rtol=1e-5, atol=1e-6)


def toys_keys():
    return streams.make_keys(jax.random.key(0))
