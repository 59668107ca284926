"""Samplings of a user's own: what is no cohort is refused before training, or stops the run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

import fedjax_lab
from fedjax_lab import sampling
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.simulation import contract
from fedjax_lab.testing import CheckFailed, check_method


def thirds(key, server, population, m):
    return jnp.arange(m), jnp.full(m, 1 / 3 / m)


def from_one(key, server, population, m):
    return 1 + jnp.arange(len(population.id)), jnp.full(len(population.id), 1 / 6)


def negative(key, server, population, m):
    return jnp.arange(3), jnp.asarray([-1.0, 1.0, 1.0])


def right(key, server, population, m):
    return jnp.arange(m) + len(population.id) - m, jnp.full(m, 1 / m)


def of_server(key, server, population, m):
    """Shares that depend on the server's weights, and sum to 1/2."""
    finite = jnp.isfinite(jnp.sum(server.params["head"]["bias"]))
    return jnp.arange(m), jnp.where(finite, jnp.full(m, 1 / 2 / m), 0)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The config of a run with six clients."""
    folder = tmp_path_factory.mktemp("toy")
    toys.write_examples(folder / "data.npz")
    return load_config(toys.write_config(folder, run={"rounds": 2, "eval_every": 2, "cohort": 3}))


def config(toy, sample):
    return {**toy, "run": {**toy["run"], "sampling": sample}}


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (thirds, "thirds must return shares .* they sum to 0.333333; divide them by their sum"),
        (from_one, "from_one draws client 6, but the clients are 0 .. 5"),
        (negative, "one of them is -1"),
    ],
)
def test_a_sample_that_is_no_cohort_is_refused_before_training(toy, sample, message):
    with pytest.raises(BadInput, match=message):
        experiment.build(resolve(config(toy, sample)))


def test_a_right_sampling_is_accepted(toy):
    assert experiment.build(resolve(config(toy, right)))


def test_shares_that_depend_on_the_server_stop_the_run_in_one_line(toy):
    with pytest.raises(BadInput, match=r"of_server returned in round 1 \(seed 0\) .* sum to 1"):
        fedjax_lab.run(config(toy, of_server), quiet=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("sample", [thirds, from_one])
def test_check_method_finds_a_wrong_sampling(sample):
    with pytest.raises(CheckFailed, match="the sampling of the method"):
        check_method(method_with[sample])


def with_thirds(task):
    return fedavg(task)._replace(sample=thirds)


def with_from_one(task):
    return fedavg(task)._replace(sample=from_one)


method_with = {thirds: with_thirds, from_one: with_from_one}


def test_is_cohort_against_its_definition():
    whole = jax.jit(contract.is_cohort, static_argnums=2)
    ids = jnp.arange(4)
    cases = {
        (0.25, 0.25, 0.25, 0.25): True,
        (0.0, 0.0, 0.0, 0.0): True,  # nobody was drawn
        (0.5, 0.0, 0.5, 0.0): True,
        (0.5, 0.5, 0.5, 0.5): False,
        (np.nan, 0.5, 0.5, 0.0): False,
        (2.0, -1.0, 0.0, 0.0): False,
    }
    for shares, expected in cases.items():
        assert bool(whole(ids, jnp.asarray(shares), 4)) == expected
    assert not whole(ids, jnp.full(4, 0.25), 3) and not whole(ids - 1, jnp.full(4, 0.25), 4)


def test_samplings_of_the_package_are_known():
    assert not any(map(sampling.is_own, (sampling.by_size, sampling.evenly(sampling.shuffled))))
    assert sampling.is_own(thirds) and sampling.is_own(sampling.evenly(thirds))
