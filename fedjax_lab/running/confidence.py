"""An interval for a mean that stays valid however often one looks at it.

The usual 95 % interval by Student's t is valid for a number of values that was fixed beforehand.
Where values are added until the interval is short enough, it misses the mean more often than one
time in twenty. The interval here is one of a *confidence sequence*: with a probability of 95 % the
intervals after 2, 3, 4, ... values all contain the mean at once, so that one may look after each
value, and stop for any reason.

It is the t-confidence sequence with a Gaussian mixture (Lai, Annals of Statistics 4(2), 1976; Wang
and Ramdas, arXiv:2310.03722): all means against which the Bayes factor of the one-sample t-test
(Gonen et al., American Statistician 59(3), 2005), with a normal prior of variance g for the mean in
standard deviations, is below 1 / alpha. By Ville's inequality the true mean is ever left out with a
probability of at most alpha. Like Student's interval it takes the values for independent and
normally distributed.
"""

import math
from collections.abc import Sequence

import numpy as np

LEVEL = 0.95
G = 5.0  # short intervals for 4 to 30 values; finite ones from 4 on


def half_width(values: Sequence[float], level: float = LEVEL) -> float:
    """Half the length of the interval around the mean of the values; inf for too few of them."""
    n = len(values)
    factor = _factor(n, 1 - level) if n > 1 else math.inf
    if math.isinf(factor):
        return factor
    return factor * float(np.std(values, ddof=1)) / math.sqrt(n)


def _factor(n, alpha):
    """The largest |t| of n values whose Bayes factor is below 1 / alpha.

    With w = 1 + n g and x = t^2 / (n - 1) the Bayes factor is
    w^(-1/2) [(1 + x) / (1 + x / w)]^(n/2).
    """
    w = 1 + n * G
    r = (math.sqrt(w) / alpha) ** (2 / n)
    return math.sqrt((n - 1) * (r - 1) / (1 - r / w)) if r < w else math.inf
