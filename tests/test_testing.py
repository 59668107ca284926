"""The checks of user-defined parts: correct parts pass, and wrong ones fail with clear errors."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_lab import losses
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.testing import CheckFailed, check_method, check_model, check_partition, check_source
from fedjax_lab.types import Exchange, State


def fails(message):
    return pytest.raises(CheckFailed, match=re.escape(message))


def with_round(task, **functions):
    """FedAvg with other functions in its exchange."""
    plain = fedavg(task)
    return plain._replace(round=(plain.round[0]._replace(**functions),))


def never_trains(task):
    return with_round(task, local=lambda message, client, work: (message, ()))


def divides_by_zero(task):
    (exchange,) = fedavg(task).round

    def aggregate(server, uploads, cohort):
        new = exchange.aggregate(server, uploads, cohort)
        return jax.tree.map(lambda a: a / jnp.sum(0 * cohort.n), new)

    return with_round(task, aggregate=aggregate)


def keeps_one_for_all(task):
    plain = fedavg(task)
    return plain._replace(init=lambda key, c: State(task.init(key), jnp.zeros(3)))


def depends_on_the_order(task):
    """The first client in the order of the devices counts twice."""

    def local(message, client, work):
        return work.train(message, losses.risk(task)), ()

    def aggregate(server, uploads, cohort):
        share = cohort.weight.at[0].mul(2)
        return jax.tree.map(lambda a: jnp.tensordot(share / share.sum(), a, 1), uploads)

    plain = fedavg(task)
    return plain._replace(round=(Exchange(plain.round[0].send, local, aggregate),))


def draws_thirds(task):
    def sample(key, server, population, m):
        return jnp.arange(m), jnp.full(m, 1 / 3 / m)

    return fedavg(task)._replace(sample=sample)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (keeps_one_for_all, "`init` of a method must return private state of 8 clients"),
        pytest.param(divides_by_zero, "is not finite in round 1", marks=pytest.mark.exhaustive),
        pytest.param(never_trains, "the training loss does not fall", marks=pytest.mark.exhaustive),
        pytest.param(draws_thirds, "the sampling of the method", marks=pytest.mark.exhaustive),
        pytest.param(
            depends_on_the_order,
            "gives other numbers than 2 seeds",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_wrong_methods_fail_with_a_specific_error(method, message):
    with fails(message):
        check_method(method)
    with fails("method fedprox has no setting 'mü'"):
        check_method("fedprox", mü=1.0)


def uses_random_numbers_of_its_own(task):
    def aggregate(server, uploads, cohort):
        noise = 0.01 * np.random.default_rng().normal()
        return jax.tree.map(lambda a: noise + a[0], uploads)

    return with_round(task, aggregate=aggregate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "message"),
    [
        (uses_random_numbers_of_its_own, "the numbers depend on"),
        (divides_by_zero, "the state or a loss is not finite after two rounds"),
        pytest.param(draws_thirds, "the sampling of the method", marks=pytest.mark.exhaustive),
    ],
)
def test_the_quick_check_finds_wrong_numbers(method, message):
    with fails(message):
        check_method(method, level="quick")
    with fails("level cannot be 'fast'; choose from full, quick"):
        check_method(method, level="fast")


@pytest.mark.slow
def test_the_quick_check_accepts_a_method_that_does_not_learn():
    check_method(never_trains, level="quick")


class LogitsAlone(nn.Module):
    num_classes: int
    width: int = 8
    centered: bool = False

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        x = x - x.mean(0) * self.centered
        return nn.Dense(self.num_classes)(nn.relu(nn.Dense(self.width)(x)))


@pytest.mark.exhaustive
def test_correct_models_pass_and_a_wrong_one_fails():
    assert check_model("mlp", shape=(5,)).num_classes == 4
    assert check_model(LogitsAlone, shape=(4, 4, 1), width=4).dense[-1] == "head"
    with fails("in evaluation an example's logits depend on the other examples"):
        check_model(LogitsAlone, shape=(5,), centered=True)


def own_random_numbers(y, domain, num_clients, rng):
    return np.array_split(np.random.permutation(len(y)), num_clients)


def twice_the_same(y, domain, num_clients, rng):
    return [np.array([0, 1, 1])] * num_clients


def test_wrong_partitions_fail_with_a_specific_error():
    check_partition("dirichlet", alpha=0.5)
    check_partition("by_domain", num_domains=5)
    for partition, message in (
        (own_random_numbers, "all random numbers must come from `rng`"),
        (twice_the_same, "are given more than once"),
        (lambda y, domain, num_clients, rng: [np.arange(3)], "rows for 1 clients instead of 5"),
    ):
        with fails(message):
            check_partition(partition)


def blobs(*, seed: int = 0, low: int = 0, kind: str = "float32", shape: tuple = (5,)):
    rng = np.random.default_rng(seed if seed >= 0 else None)
    y = rng.integers(low, 3, 60).astype(np.int32)
    x = np.abs(40 * rng.normal(size=(60, *shape))).astype(kind)
    test = np.arange(60) % 5 == 0
    return Dataset(x, y, np.zeros(60, np.int32), test, ("a", "b", "c"), ("all",))


def test_wrong_data_sources_fail_with_a_specific_error():
    assert len(check_source(blobs, seed=3).x) == 60
    assert check_source(blobs, kind="uint8", shape=(4, 6)).x.shape == (60, 4, 6)  # gray images
    for settings, message in (
        ({"seed": -1}, "two calls return different examples"),
        ({"low": -2}, "out of range 0..2"),
        ({"kind": "complex64"}, "x must be numbers, not complex64"),
    ):
        with fails(message):
            check_source(blobs, **settings)
