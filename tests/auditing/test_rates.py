"""Rates of attacks on membership: perfect and useless attackers, counts, and likelihood ratios."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import complaint
from scipy import stats
from sklearn import metrics

from fedjax_lab import losses
from fedjax_lab.auditing import likelihood, rates

RNG = np.random.default_rng(0)
MEMBERS, OTHERS = RNG.normal(1, 1, 300), RNG.normal(0, 1, 2000)


def test_a_perfect_attacker_is_at_the_upper_end_of_every_rate():
    for name, (value, low, high) in rates.summarize(2 + np.arange(40.0), np.zeros(30)).items():
        assert value == high == 1 and low > 0.8, name


def test_useless_attackers_are_at_the_lower_end_of_every_rate():
    constant = rates.summarize(np.zeros(400), np.zeros(400))
    assert [a.value for a in constant.values()] == [0.5, 0.5, 0, 0]
    same = np.arange(2000.0)
    for attack in (constant, rates.summarize(same, same)):
        assert attack["auc"].low < 0.5 < attack["auc"].high
        assert attack["balanced_accuracy"].low < 0.5 < attack["balanced_accuracy"].high
    assert attack["tpr_at_1"].value == 0.01 and attack["tpr_at_0.1"].value == 0.001
    inverted = rates.summarize(np.zeros(30), np.ones(30))
    assert inverted["auc"].value == 0 and inverted["balanced_accuracy"].value == 0.5


def test_rates_are_those_of_scikit_learn_and_counts():
    summary = rates.summarize(MEMBERS, OTHERS)
    labels, scores = np.repeat([1, 0], [300, 2000]), np.r_[MEMBERS, OTHERS]
    assert summary["auc"].value == pytest.approx(metrics.roc_auc_score(labels, scores))
    false, true, _ = metrics.roc_curve(labels, scores, drop_intermediate=False)
    assert summary["balanced_accuracy"].value == pytest.approx((1 + np.max(true - false)) / 2)
    for name, rate in rates.RATES.items():
        count = max(np.sum(MEMBERS > t) for t in scores if np.mean(OTHERS > t) <= rate)
        low, high = stats.beta.ppf([0.025, 0.975], [count, count + 1], [301 - count, 300 - count])
        assert summary[name] == pytest.approx((count / 300, low, high)), name


def test_a_curve_has_a_point_at_the_lowest_rate_and_ends_at_one():
    false, true = rates.curve(MEMBERS, OTHERS)
    assert len(false) <= rates.POINTS + 1 and false[0] == 0 and false[-1] == true[-1] == 1
    assert 1 / 2000 in false and np.all(np.diff(false) >= 0) and np.all(np.diff(true) >= 0)
    at = np.interp(0.01, false, true)
    assert at == pytest.approx(rates.summarize(MEMBERS, OTHERS)["tpr_at_1"].value, abs=0.01)


def test_the_curve_of_a_perfect_attacker_finds_members_at_no_false_positive():
    assert rates.curve(np.arange(3.0, 6), np.arange(3.0)) == (
        [0, 0, 1 / 3, 2 / 3, 1],
        [0, 1, 1, 1, 1],
    )


def test_few_pairs_that_are_all_ranked_correctly_leave_the_area_uncertain():
    few, many = (rates.auc(n + np.arange(n), np.arange(n)) for n in (3, 300))
    assert few.value == many.value == few.high == 1
    assert few.low < 0.9 < 0.99 < many.low < 1
    wrong = rates.auc(np.arange(3), 3 + np.arange(3))
    assert wrong == pytest.approx((0, 0, 1 - few.low))


def test_the_confidence_of_an_example_is_the_log_odds_of_its_label():
    logits, y = RNG.normal(size=(6, 4)) * 5, RNG.integers(0, 4, 6)
    p = np.asarray(jax.nn.softmax(logits))[np.arange(6), y]
    made = likelihood.confidence(losses.classification(4), jnp.asarray(logits), jnp.asarray(y))
    np.testing.assert_allclose(made, np.log(p / (1 - p)), rtol=1e-3)
    sure = likelihood.confidence(losses.classification(2), jnp.array([[90.0, 0]]), jnp.array([0]))
    assert float(sure[0]) == pytest.approx(90)


@pytest.mark.parametrize("count", [16, 64])
def test_likelihood_ratios_are_those_of_numpy(count):
    phi, references = RNG.normal(size=7), RNG.normal(size=(count, 7))
    included = RNG.permuted(np.arange(count)[:, None] % 2 == np.zeros(7), axis=0)

    def normal(x, mu, var):
        return np.exp(-((x - mu) ** 2) / (2 * var)) / np.sqrt(2 * np.pi * var)

    groups = [[references[which[:, e], e] for e in range(7)] for which in (included, ~included)]
    means = [np.array([np.mean(a) for a in group]) for group in groups]
    variances = [np.array([np.var(a, ddof=1) for a in group]) for group in groups]
    if count < 64:
        variances = [np.mean(each) for each in variances]
    inside, outside = (normal(phi, *of) for of in zip(means, variances, strict=True))
    made = likelihood.online(phi, references, included)
    np.testing.assert_allclose(made, np.log(inside / outside), rtol=1e-6)
    below = stats.norm.cdf((phi - means[1]) / np.sqrt(variances[1]))
    np.testing.assert_allclose(likelihood.offline(phi, references, included), np.log(below))


def test_too_few_references_are_one_line():
    included = np.array([[True], [False], [False]])
    message = complaint(likelihood.online, np.zeros(1), np.zeros((3, 1)), included)
    assert "3 reference federations are too few" in message and "only 1 of them" in message
