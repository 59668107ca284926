"""The interval that stays valid however often one looks."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from fedjax_lab.running import confidence


def bayes_factor(t, n):
    """Of the one-sample t-test: by integration over the prior of the effect."""

    def weighted(effect):
        likelihood = stats.nct.pdf(t, n - 1, effect * math.sqrt(n))
        return likelihood * stats.norm.pdf(effect, scale=math.sqrt(confidence.G))

    whole, _ = integrate.quad(weighted, -15, 15, points=(0, t / math.sqrt(n)), limit=200)
    return whole / stats.t.pdf(t, n - 1)


@pytest.mark.parametrize("n", [5, 8, 20])
def test_its_end_is_where_the_bayes_factor_reaches_one_over_alpha(n):
    values = np.random.default_rng(n).normal(size=n)
    half = confidence.half_width(values)
    t = half / (np.std(values, ddof=1) / math.sqrt(n))
    assert bayes_factor(t, n) == pytest.approx(20, rel=1e-4)


def missed(values, level=0.95):
    """The share of experiments [E, n] whose interval leaves out 0 after any number of values."""
    ever = np.zeros(len(values), bool)
    for n in range(4, values.shape[1] + 1):
        some = values[:, :n]
        half = confidence._factor(n, 1 - level) * some.std(1, ddof=1) / math.sqrt(n)
        ever |= np.abs(some.mean(1)) > half
    return ever.mean()


@pytest.mark.parametrize("draw", ["normal", "uniform", "logistic"])
def test_it_contains_the_mean_at_every_look_at_once(draw):
    """Student's interval, looked at as often, misses the mean in a quarter of these experiments."""
    rng = np.random.default_rng(0)
    values = getattr(rng, draw)(size=(4000, 40))
    values = values - (0.5 if draw == "uniform" else 0.0)
    assert missed(values) < 0.055
    assert missed(values, 0.8) > missed(values)


def test_few_and_equal_values():
    assert confidence.half_width([]) == confidence.half_width([1.0]) == math.inf
    assert confidence.half_width([1.0, 2.0, 3.0]) == math.inf
    assert confidence.half_width([2.0] * 4) == 0.0
    halves = [confidence.half_width([0.0, 1.0] * k) for k in (2, 4, 8, 16)]
    assert halves == sorted(halves, reverse=True)
