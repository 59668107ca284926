"""A confidence interval for a mean that stays valid if it is computed again after each new value.

The usual 95 % interval by Student's t is valid for a number of values that was fixed in advance. If
values are added until the interval is short enough, it misses the mean more often than one time in
twenty. The interval here belongs to a *confidence sequence*: with a probability of 95 %, the
intervals after 2, 3, 4, ... values all contain the mean simultaneously. One may therefore check it
after each value and stop at any time.

It is the t-confidence sequence with a Gaussian mixture (Lai, Annals of Statistics 4(2), 1976; Wang
and Ramdas, arXiv:2310.03722). The interval contains all means against which the Bayes factor of the
one-sample t-test (Gonen et al., American Statistician 59(3), 2005) is below 1 / alpha, with a
normal prior of variance g for the mean in units of the standard deviation. By Ville's inequality,
the probability that any interval misses the true mean is at most alpha. Like Student's interval,
it assumes that the values are independent and normally distributed.
"""

import math
from collections.abc import Sequence

import numpy as np

LEVEL = 0.95
G = 5.0  # gives short intervals for 4 to 30 values; intervals of 4 or more values are finite


def half_width(values: Sequence[float], level: float = LEVEL) -> float:
    """Half the length of the interval around the mean of the values; inf for too few values."""
    n = len(values)
    factor = _factor(n, 1 - level) if n > 1 else math.inf
    if math.isinf(factor):
        return factor
    return factor * float(np.std(values, ddof=1)) / math.sqrt(n)


def _factor(n, alpha):
    """The largest |t| statistic of n values whose Bayes factor is below 1 / alpha.

    With w = 1 + n g and x = t^2 / (n - 1) the Bayes factor is
    w^(-1/2) [(1 + x) / (1 + x / w)]^(n/2).
    """
    w = 1 + n * G
    r = (math.sqrt(w) / alpha) ** (2 / n)
    return math.sqrt((n - 1) * (r - 1) / (1 - r / w)) if r < w else math.inf
