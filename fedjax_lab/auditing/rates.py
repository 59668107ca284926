"""How well scores tell members from nonmembers: rates with intervals, and the ROC curve.

An attack guesses "member" for each example whose score is above a threshold. Low rates of false
positives matter most (Carlini et al., S&P 2022, arXiv:2112.03570): an attack that is certain about
few members is worse for them than one that is slightly better than a coin for all.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95  # of all intervals
RATES = {"tpr_at_1": 0.01, "tpr_at_0.1": 0.001}  # names of true positive rates: the false ones
POINTS = 100  # of a curve


class Estimate(NamedTuple):
    """A rate from 0 to 1 and its interval at 95 %."""

    value: float
    low: float
    high: float


def summarize(members: np.ndarray, others: np.ndarray) -> dict[str, Estimate]:
    """The rates of an attack: `auc`, `balanced_accuracy`, and the true positive rates `RATES`.

    members, others: scores [N] and [M] of members and nonmembers; higher means "member".
    """
    rates = {name: true_positives(members, others, rate) for name, rate in RATES.items()}
    return {"auc": auc(members, others), "balanced_accuracy": accuracy(members, others)} | rates


def auc(members: np.ndarray, others: np.ndarray) -> Estimate:
    """The area under the ROC curve: the share of pairs that are ranked correctly, ties as half.

    Its interval has the standard error of Hanley and McNeil (Radiology 1982), of an area at least
    half a pair away from 0 and 1, so that it has a width where all pairs are ranked correctly.
    """
    n, m = len(members), len(others)
    area = float(stats.mannwhitneyu(members, others).statistic) / (n * m)
    inner = float(np.clip(area, 0.5 / (n * m), 1 - 0.5 / (n * m)))
    both_members, both_others = inner / (2 - inner), 2 * inner**2 / (1 + inner)
    spread = (n - 1) * (both_members - inner**2) + (m - 1) * (both_others - inner**2)
    error = np.sqrt(max(0.0, inner * (1 - inner) + spread) / (n * m))
    margin = float(stats.norm.ppf((1 + CONFIDENCE) / 2) * error)
    return Estimate(area, max(0.0, area - margin), min(1.0, area + margin))


def true_positives(members: np.ndarray, others: np.ndarray, rate: float) -> Estimate:
    """The share of members above the lowest threshold with at most `rate` false positives.

    Its interval is that of Clopper and Pearson, given the threshold. With fewer than 1 / rate
    nonmembers no false positive is allowed.
    """
    allowed = int(np.floor(rate * len(others) + 1e-9))
    threshold = np.sort(others)[::-1][allowed] if allowed < len(others) else -np.inf
    return _share(np.sum(members > threshold), len(members), CONFIDENCE)


def accuracy(members: np.ndarray, others: np.ndarray) -> Estimate:
    """The highest mean of the true positive and the true negative rate over all thresholds.

    Its interval holds both rates at this threshold, each at 97.5 %. The threshold is chosen with
    the same scores, so the value is slightly too high where there are few.
    """
    false, true, counts = _curve(members, others)
    best = int(np.argmax(true - false))
    both = (1 + CONFIDENCE) / 2
    positives = _share(counts[1][best], len(members), both)
    negatives = _share(len(others) - counts[0][best], len(others), both)
    return Estimate(*((p + n) / 2 for p, n in zip(positives, negatives, strict=True)))


def curve(members: np.ndarray, others: np.ndarray) -> tuple[list[float], list[float]]:
    """The ROC curve as false and true positive rates, ascending; at most about `POINTS` of them.

    The points are spread evenly over the logarithm of the false positive rate.
    """
    false, true, _ = _curve(members, others)
    wanted = np.r_[0, np.geomspace(1 / len(others), 1, POINTS)]
    at = np.unique(np.r_[0, np.searchsorted(false, wanted * (1 + 1e-9), "right") - 1])
    return false[at].tolist(), true[at].tolist()


def pictures(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The ROC curve with logarithmic axes. arrays: `false` and `true` positive rates."""
    from matplotlib.figure import Figure  # imported only for pictures

    false, true = arrays["false"], arrays["true"]
    lowest = float(np.min(false[false > 0])) / 2
    figure = Figure(figsize=(4, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(np.maximum(false, lowest), np.maximum(true, lowest), drawstyle="steps-post")
    axes.plot([lowest, 1], [lowest, 1], linestyle=":", color="gray", label="guesses at random")
    axes.set(xscale="log", yscale="log", xlim=(lowest, 1), ylim=(lowest, 1))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.legend(loc="lower right")
    return {"roc": figure}


def _curve(members, others):
    """False and true positive rates at every threshold, and their counts."""
    thresholds = np.r_[np.inf, np.unique(np.r_[members, others])[::-1]]
    counts = [len(a) - np.searchsorted(np.sort(a), thresholds, "left") for a in (others, members)]
    return counts[0] / len(others), counts[1] / len(members), counts


def _share(count, total, confidence):
    interval = stats.binomtest(int(count), total).proportion_ci(confidence, "exact")
    return Estimate(int(count) / total, float(interval.low), float(interval.high))
