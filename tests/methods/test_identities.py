"""Tests that methods are equal to others in special cases."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rounds
import toys
from naive import KEYS
from slow_cases import exhaustive_but

from fedjax_lab import tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.fedper import partly_private
from fedjax_lab.simulation import simulate

ALL_CLIENTS = toys.PLAN._replace(cohort=toys.C)


def whole(state):
    return state.server


def first(state):
    return state.server[0]


def one_of_several(state):
    return tree.take(state.server, 0)


def center(state):
    return tree.take(state.server.centers, 0)


EXACTLY_FEDAVG = [  # method, its settings, the model that FedAvg trains
    ("fedala", {"layers": 0}, whole),
    ("fedcac", {"tau": 0.0}, lambda state: state.server.w),
    ("fedcm", {"alpha": 1.0}, first),
    ("fedexp", {"eps": 1e9}, first),
    ("fedprox", {"mu": 0.0}, whole),
    ("finetune", {}, whole),
    ("mimelite", {"beta": 0.0}, first),
    ("per_fedavg", {"inner_lr": 0.0, "hessian": "first_order"}, whole),
    ("per_fedavg", {"inner_lr": 0.0, "hessian": "hessian_free"}, whole),
    ("per_fedavg", {"inner_lr": 0.0, "hessian": "exact"}, whole),
]
FEDAVG_UP_TO_ROUNDING = [
    ("cfl", {"eps2": np.inf}, center),
    ("fedavgm", {"beta": 0.0}, first),
    ("feddecorr", {"beta": 0.0}, whole),
    ("feddisco", {"a": 0.0, "b": 0.0}, whole),
    ("fedem", {"num_components": 1}, one_of_several),
    ("fedgen", {"alpha": 0.0}, first),
    ("fedgma", {"tau": 0.0}, whole),
    ("fedntd", {"beta": 0.0}, whole),
    ("fedphp", {"lam": 0.0, "transfer": "kd"}, whole),
    ("fedphp", {"lam": 0.0, "transfer": "mmd"}, whole),
    ("fedsam", {"rho": 0.0}, whole),
    ("fedsoft", {"num_clusters": 1, "mu": 0.0}, center),
    ("fesem", {"num_clusters": 1, "mu": 0.0}, center),
    ("ifca", {"num_clusters": 1, "by_size": True}, one_of_several),
    ("moon", {"mu": 0.0}, whole),
    # lam (w - (w - grad F(w) / lam)) is grad F(w)
    ("pfedme", {"lam": 4.0, "inner_steps": 1, "inner_lr": 0.25}, whole),
]
EXACTLY_LOCAL = [("fd", {"gamma": 0.0}), ("fedamp", {"pull": 0.0})]  # method, its settings
LOCAL_UP_TO_ROUNDING = [
    ("apfl", {"alpha": 1.0, "adaptive": False}),
    ("fedmtl", {"lam": 0.0}),
    ("fedproto", {"lam": 0.0}),
    ("fml", {"alpha": 1.0, "beta": 1.0}),
]


@pytest.mark.parametrize(
    "name, settings, model", exhaustive_but(["fedala", "fedprox"], EXACTLY_FEDAVG)
)
def test_it_is_fedavg_bit_for_bit(name, settings, model):
    state, sums = toys.player(toys.make(name, **settings))(KEYS, 0, 3)
    expected, expected_sums = rounds.averaged()
    toys.same((model(state), sums), (expected.server, expected_sums))


@pytest.mark.parametrize("name, settings, model", exhaustive_but(["ifca"], FEDAVG_UP_TO_ROUNDING))
def test_it_is_fedavg_up_to_rounding(name, settings, model):
    """Sums are in another order, or a term that is zero is added."""
    state, sums = toys.player(toys.make(name, **settings))(KEYS, 0, 3)
    expected, expected_sums = rounds.averaged()
    toys.close(model(state), expected.server, rtol=1e-5, atol=2e-6)
    if name != "pfedme":  # whose loss is that of the personal model
        toys.close(sums.train_loss, expected_sums.train_loss, rtol=1e-5)


@functools.cache
def trained_alone(name="local", **settings):
    """The models of the clients after three rounds in which all of them train."""
    made = toys.make(name, **settings)
    models = toys.player(made, plan=ALL_CLIENTS)(KEYS, 0, 3)[0].private
    return models[0] if name == "apfl" else models


@pytest.mark.parametrize("name, settings", exhaustive_but(["fedamp"], EXACTLY_LOCAL))
def test_it_is_local_training_bit_for_bit(name, settings):
    toys.same(trained_alone(name, **settings), trained_alone())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name, settings", LOCAL_UP_TO_ROUNDING)
def test_it_is_local_training_up_to_rounding(name, settings):
    toys.close(trained_alone(name, **settings), trained_alone(), rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_fedfomo_without_other_models_is_local_training():
    """The validation rows are left out in both."""
    one, _ = toys.player(toys.make("fedfomo", models=0), plan=ALL_CLIENTS)(KEYS, 0, 3)
    alone = toys.make("local")._replace(validation=True)
    toys.same(one.private[0], toys.player(alone)(KEYS, 0, 3)[0].private)


@pytest.mark.parametrize(
    "name, settings",
    exhaustive_but(
        ["ditto"],
        [
            ("fedlc", {"tau": 0.0}),
            ("fedrs", {"alpha": 1.0}),
            ("ditto", {}),
            ("apfl", {"alpha": 0.0, "adaptive": False}),
            ("fml", {"alpha": 1.0, "beta": 1.0}),
        ],
    ),
)
def test_on_skewed_classes_the_server_has_the_model_of_fedavg(name, settings):
    """The last three also train personal models."""
    state, _ = toys.player(toys.make(name, **settings), federation=toys.SKEWED)(KEYS, 0, 3)
    expected = rounds.averaged(True)[0].server
    if name == "fml":
        toys.close(state.server, expected, rtol=1e-5, atol=1e-6)
    else:
        toys.same(state.server, expected)


@pytest.mark.exhaustive
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
    difference = optax.tree.sub(state.server[0].params, plain.server.params)
    assert float(tree.sq_norm(difference)) > 1e-3


@pytest.mark.exhaustive
def test_fedper_with_nothing_private_is_fedavg():
    state, sums = toys.player(partly_private(toys.NORM, lambda name: False))(KEYS, 0, 3)
    toys.same((state.server, sums), (rounds.averaged()[0].server, rounds.averaged()[1]))


@pytest.mark.exhaustive
def test_fedbn_on_a_net_without_norm_layers_is_fedavg():
    a = toys.player(toys.make("fedbn", toys.TASK))(KEYS, 0, 3)
    b = toys.player(toys.make("fedavg", toys.TASK))(KEYS, 0, 3)
    toys.same(a[0].server.params, b[0].server.params)


@pytest.mark.parametrize(
    "name, exchange, upload, model",
    [
        ("feddyn", 0, lambda w: w, lambda server: server.mean),
        ("fediir", 1, lambda w: w, lambda server: server.w),
        ("ifca", 0, lambda w: (jnp.zeros(3, int), w), lambda server: tree.take(server, 0)),
    ],
)
def test_uniform_means_leave_running_statistics_averaged_by_size(name, exchange, upload, model):
    method = toys.make(name)
    w = toys.NORM.init(KEYS.init)
    w = jax.tree.map(lambda a: jnp.multiply.outer(jnp.array([1.0, 2.0, 6.0]), jnp.ones(a.shape)), w)
    n = jnp.array([10.0, 20.0, 70.0])
    cohort = tree.take(toys.POPULATION, jnp.arange(3))._replace(n=n, weight=jnp.full(3, 1 / 3))
    server = simulate.init(method, KEYS, toys.C).server
    aggregate = jax.jit(method.round[exchange].aggregate)
    new = model(aggregate(server, upload(w), cohort))
    np.testing.assert_allclose(new.params["head"]["bias"], 3.0, rtol=1e-6)
    np.testing.assert_allclose(new.stats["BatchNorm_0"]["var"], 4.7, rtol=1e-6)


def test_first_weights_do_not_depend_on_the_method():
    one = simulate.init(toys.make("fedavg"), KEYS, toys.C).server
    toys.same(simulate.init(toys.make("fedprox"), KEYS, toys.C).server, one)
    many = simulate.init(toys.make("ifca"), KEYS, toys.C).server
    toys.same(jax.tree.map(lambda a: a[0], many), one)
    private = simulate.init(toys.make("local"), KEYS, toys.C).private
    toys.same(jax.tree.map(lambda a: a[4], private), one)


@pytest.mark.slow
def test_an_exchange_that_only_measures_does_not_change_training():
    """The last of two exchanges shuffles exactly as the only one of FedAvg."""
    one = fedavg(toys.NORM)
    measure = one.round[0]._replace(
        local=lambda w, client, work: (work.mean(lambda b: b.x.sum()), client.private),
        aggregate=lambda w, uploads, cohort: w,
    )
    two = one._replace(round=(measure, *one.round))
    toys.same(toys.player(two)(KEYS, 0, 3), rounds.averaged())
