"""The stated epsilon is above what canaries show, and not for broken mechanisms."""

import jax.numpy as jnp
import numpy as np
import optional
import pytest
from inputs import complaint
from scipy import stats
from slow_cases import exhaustive_but

from fedjax_lab import sampling
from fedjax_lab.auditing import canaries
from fedjax_lab.transforms import privacy
from fedjax_lab.transforms.guarantee import Setup

optional.module("dp_accounting")
auditing = optional.module("jax_privacy.auditing")

SETUP = Setup(num_clients=20, cohort=10, rounds=4, sizes=(40,) * 20, batch_size=20, epochs=1)
WHOLE = SETUP._replace(cohort=20, rounds=1)


def section(name, **settings):
    """The section `privacy` of a config."""
    return {"name": name, "clip": 0.5, "noise": 1.0, "epsilon": 0.0, "delta": 0.0} | settings


def central(**settings):
    return section("central", **{"sampling": "poisson", "capacity": 0, **settings})


ADAPTIVE = {"quantile": 0.5, "clip_lr": 0.2, "count_noise": 0.2}
CLAIMS = {
    "no sampling": (central(), WHOLE),
    "poisson": (central(), SETUP),
    "fixed": (central(noise=2.0, sampling="fixed"), SETUP),
    "adaptive": (section("adaptive", **ADAPTIVE, sampling="poisson", capacity=0), SETUP),
    "banded": (section("banded", bands=2), SETUP),
    "local": (section("local", noise=2.0), WHOLE._replace(rounds=3)),
    "example_level": (section("example_level"), WHOLE),
}
EACH = pytest.mark.parametrize("claim", CLAIMS)


@pytest.mark.exhaustive
@EACH
def test_no_bound_is_above_the_stated_epsilon(claim):
    many = canaries.many_runs(*CLAIMS[claim])
    assert many.stated / 4 < many.lower <= many.stated
    name, setup = CLAIMS[claim]
    crowd = setup._replace(num_clients=400, cohort=20 * setup.cohort, sizes=(400,) * 400)
    one = canaries.one_run(name, crowd)
    assert 0 <= one.lower <= one.stated and one.delta < many.delta


def halved(monkeypatch):
    add = privacy.with_noise
    monkeypatch.setattr(privacy, "with_noise", lambda u, key, std: add(u, key, std / 2))


def clipped_after_the_sum(monkeypatch):
    clip = privacy.clipped_mean

    def broken(updates, drawn, largest, cohort):
        mean = clip(updates, drawn, jnp.inf, cohort)
        return clip([u[None] for u in mean], jnp.ones(1, bool), largest, 1)

    monkeypatch.setattr(privacy, "clipped_mean", broken)


def counted_twice(monkeypatch):
    draw = sampling.poisson

    def broken(*args, **options):
        ids, shares = draw(*args, **options)
        is_drawn = shares > 0
        again = jnp.append(is_drawn, jnp.any(is_drawn & (ids == 0)))
        return jnp.append(ids, 0), sampling.equal_shares(again)

    monkeypatch.setattr(sampling, "poisson", broken)


@pytest.mark.parametrize(
    "breaks", exhaustive_but([None, halved], [None, halved, clipped_after_the_sum, counted_twice])
)
def test_a_broken_mechanism_is_caught(breaks, monkeypatch):
    if breaks is not None:
        breaks(monkeypatch)
    bound = canaries.many_runs(central(), SETUP)
    assert (bound.lower > bound.stated) == (breaks is not None)


@pytest.mark.exhaustive
@EACH
def test_too_little_noise_is_caught_in_every_mechanism(claim, monkeypatch):
    halved(monkeypatch)
    bound = canaries.many_runs(*CLAIMS[claim])
    assert bound.lower > bound.stated


@pytest.mark.slow
def test_one_run_catches_noise_that_is_far_too_small(monkeypatch):
    setup = WHOLE._replace(num_clients=400, cohort=400, sizes=(1,) * 400)
    add = privacy.with_noise
    monkeypatch.setattr(privacy, "with_noise", lambda u, key, std: add(u, key, std / 10))
    bound = canaries.one_run(central(noise=2.0), setup)
    assert bound.lower > bound.stated


# The bounds.


@pytest.mark.parametrize(
    "m, guesses, correct, delta", [(1000, 200, 150, 1e-5), (100, 60, 60, 1e-3)]
)
def test_the_bound_of_one_run_is_that_of_its_paper(m, guesses, correct, delta):
    """The smallest epsilon that is not refuted: Theorem 5.2 of Steinke et al., term by term."""

    def probability(epsilon):
        q = np.exp(epsilon) / (1 + np.exp(epsilon))
        mass = [stats.binom.pmf(v, guesses, q) for v in range(guesses + 1)]
        beta = sum(mass[correct:])
        alpha = max(sum(mass[correct - i : correct]) / i for i in range(1, correct + 1))
        return beta + 2 * m * delta * alpha

    bound = canaries.guesses_bound(m, guesses, correct, delta)
    assert probability(bound) == pytest.approx(0.05, rel=1e-3)
    scores = np.repeat([1.0, 0.0], [correct, m - guesses]), np.ones(guesses - correct)
    if guesses > correct:
        auditor, strategy = auditing.CanaryScoreAuditor(*scores), auditing.Explicit(1.0)
        expected = auditor.epsilon_one_run(0.05, delta, threshold_strategy=strategy)
        assert bound == pytest.approx(expected, abs=1e-4)


def test_guesses_as_good_as_a_coin_bound_nothing_and_right_ones_the_most():
    assert canaries.guesses_bound(100, 100, 50, 1e-5) == 0
    assert canaries.guesses_bound(100, 0, 0, 1e-5) == 0
    best = canaries.guesses_bound(1000, 1000, 1000, 0)  # q^1000 = 0.05
    assert best == pytest.approx(np.log(0.05**1e-3 / (1 - 0.05**1e-3)), abs=1e-4)


def test_the_bound_of_many_runs_is_that_of_exact_intervals_of_both_rates():
    included = np.arange(8000) % 2 == 0
    perfect = canaries.many_runs_bound(1.0 * included, included, 0.0)
    assert 6 < perfect < np.log(2000)  # of the half of the runs that does not choose the threshold
    useless = np.random.default_rng(0).normal(size=8000)
    assert canaries.many_runs_bound(useless, included, 0.0) < 0.1


def test_an_audit_without_an_epsilon_is_refused_in_one_line():
    no_noise = central(noise=0.0, epsilon="inf")
    assert "adds no noise" in complaint(canaries.many_runs, no_noise, SETUP)
    assert "did you mean 'central'" in complaint(
        canaries.one_run, central() | {"name": "centrl"}, SETUP
    )
