"""Compares epsilon with published values."""

import math
import sys

import optional
import pytest
from inputs import complaint

from fedjax_lab import sampling
from fedjax_lab.transforms import accounting, libraries
from fedjax_lab.transforms.accounting import Run

library = optional.module("dp_accounting")

ALL_CLIENTS = Run(10, 10, "poisson", capacity=10)
PUBLISHED = [  # a run, its noise and rounds, and the delta at which epsilon is 1
    # dp_accounting, pld_privacy_accountant_test.py: test_gaussian_basic
    (Run(1, 1, "poisson"), 3**0.5, 3, 0.126936),
    # and test_poisson_subsampled_gaussian
    (Run(5, 1, "poisson"), 0.5, 3, 0.15594),
    # DPBayes/PLD-Accountant, simple_usage_example.py (the file says 1,000 rounds, for which delta
    # is 1e-15)
    pytest.param(Run(100, 1, "poisson"), 4.0, 10_000, 4.243484e-6, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("run", "noise", "rounds", "delta"), PUBLISHED)
def test_epsilon_of_poisson_cohorts_equals_published_examples(run, noise, rounds, delta):
    assert accounting.epsilon(run, noise, rounds, delta) == pytest.approx(1, abs=2e-3)


SETTINGS = [  # C, m, sigma, rounds, delta
    (1000, 100, 1.0, 200, 1e-4),
    (10_000, 50, 0.8, 1000, 1e-5),
    (100, 10, 2.0, 100, 1e-2),
    (300, 30, 1.5, 50, 2e-3),
    pytest.param(3400, 100, 0.7, 1000, 1e-4, marks=pytest.mark.slow),
    pytest.param(342_477, 1000, 0.6, 500, 1e-6, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("C", "m", "noise", "rounds", "delta"), SETTINGS)
def test_the_default_capacity_hardly_costs_epsilon(C, m, noise, rounds, delta):
    sd = math.sqrt(m * (1 - m / C))
    room, three = sampling.room(m, C), m + math.ceil(3 * sd)
    unbounded, bounded, narrow = (
        accounting.epsilon(Run(C, m, "poisson", capacity), noise, rounds, delta)
        for capacity in (0, room, three)
    )
    assert unbounded * (1 - 1e-6) <= bounded < 1.01 * unbounded < narrow


@pytest.mark.slow
def test_epsilon_of_truncated_cohorts_equals_the_example_of_dp_accounting():
    """pld_privacy_accountant_test.py: test_truncated_subsampled_gaussian_basic."""
    first = Run(4, 2, "poisson", 2)
    accountant = accounting._accountant(first, 1.0)
    accountant.compose(accounting._event(first, 1.0), 3)
    accountant.compose(library.TruncatedSubsampledGaussianDpEvent(3, 0.5, 2, 1.0), 2)
    assert accountant.get_epsilon(1e-6) == pytest.approx(17.904330, abs=2e-3)


def test_a_fixed_cohort_costs_twice_the_sensitivity_and_all_clients_a_gaussian():
    fixed, poisson = Run(1000, 100, "fixed"), Run(1000, 100, "poisson")
    ours = accounting.epsilon(fixed, 4.0, 50, 1e-5)
    assert ours == pytest.approx(accounting.epsilon(poisson, 2.0, 50, 1e-5), rel=1e-3)
    once = accounting.epsilon(ALL_CLIENTS, 2.0, 4, 1e-5)
    assert once == pytest.approx(accounting.epsilon(ALL_CLIENTS, 1.0, 1, 1e-5), abs=2e-3)
    twice = accounting.epsilon(ALL_CLIENTS._replace(per_round=2), 2.0, 2, 1e-5)
    assert twice == pytest.approx(once, abs=2e-3)
    assert accounting.epsilon(Run(1, 1, "fixed"), 2.0, 1, 1e-5) == pytest.approx(once, abs=2e-3)


def test_epsilon_does_not_depend_on_the_other_requested_rounds():
    run = Run(1000, 100, "poisson")
    each = accounting.epsilons(run, 2.0, 1e-5, (0, 7, 20))
    accounting.epsilon.cache_clear()
    assert each == [0, *accounting.epsilons(run, 2.0, 1e-5, (20, 7))[::-1]]
    assert accounting.epsilon(run, 0.0, 1, 1e-5) == float("inf")


@pytest.mark.slow
def test_the_noise_for_an_epsilon_is_minimal():
    run = Run(1000, 100, "poisson")
    noise = accounting.noise_for(run, 8.0, 20, 1e-5)
    assert accounting.epsilon(run, noise, 20, 1e-5) <= 8
    assert accounting.epsilon(run, noise - 2e-3, 20, 1e-5) > 8
    assert accounting.noise_for(run, float("inf"), 20, 1e-5) == 0


def test_bad_values_and_a_missing_package_are_one_line_errors(monkeypatch):
    run = Run(10, 5, "fixed")
    assert "privacy.delta must be above 0 and below 1" in complaint(
        accounting.epsilon, run, 1.0, 1, 1.0
    )
    libraries.import_library.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    message = complaint(accounting.epsilon, run, 1.0, 1, 1e-5)
    assert message.endswith("pip install 'fedjax_lab[privacy]'")
