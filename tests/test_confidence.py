"""Confidence intervals that stay valid however often they are computed."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from fedjax_lab.running import confidence


def bayes_factor(t, n):
    """The Bayes factor of the one-sample t-test, by integration over the prior of the effect."""

    def weighted(effect):
        likelihood = stats.nct.pdf(t, n - 1, effect * math.sqrt(n))
        return likelihood * stats.norm.pdf(effect, scale=math.sqrt(confidence.G))

    whole, _ = integrate.quad(weighted, -15, 15, points=(0, t / math.sqrt(n)), limit=200)
    return whole / stats.t.pdf(t, n - 1)


@pytest.mark.parametrize("n", [5, 8, 20])
def test_the_interval_ends_where_the_bayes_factor_is_one_over_alpha(n):
    values = np.random.default_rng(n).normal(size=n)
    half = confidence.half_width(values)
    t = half / (np.std(values, ddof=1) / math.sqrt(n))
    assert bayes_factor(t, n) == pytest.approx(20, rel=1e-4)


def missed(values, level=0.95):
    """The share of experiments [E, n] whose interval leaves out 0 after any number of values."""
    outside = np.zeros(len(values), bool)
    for n in range(4, values.shape[1] + 1):
        first = values[:, :n]
        half = confidence._factor(n, 1 - level) * first.std(1, ddof=1) / math.sqrt(n)
        outside |= np.abs(first.mean(1)) > half
    return outside.mean()


@pytest.mark.parametrize("draw", ["normal", "uniform", "logistic"])
def test_the_interval_contains_the_mean_after_every_number_of_values(draw):
    """Student's interval, computed as often, misses the mean in a quarter of the experiments."""
    rng = np.random.default_rng(0)
    values = getattr(rng, draw)(size=(4000, 40))
    values = values - (0.5 if draw == "uniform" else 0.0)
    assert missed(values) < 0.055
    assert missed(values, 0.8) > missed(values)


def test_intervals_of_few_and_of_equal_values():
    assert confidence.half_width([]) == confidence.half_width([1.0]) == math.inf
    assert confidence.half_width([1.0, 2.0, 3.0]) == math.inf
    assert confidence.half_width([2.0] * 4) == 0.0
    halves = [confidence.half_width([0.0, 1.0] * k) for k in (2, 4, 8, 16)]
    assert halves == sorted(halves, reverse=True)
