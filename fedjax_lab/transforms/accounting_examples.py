"""Epsilon of one example of a client that trains by DP-SGD in the rounds that it takes part in.

  step    a Poisson sample of b B examples at rate 1 / b, truncated at the places that a batch has
          (arXiv:2508.15089), and the Gaussian mechanism with noise multiplier sigma
  round   with probability p, K such steps; else nothing. Everybody may know which of the two
  run     T rounds, whose cohorts are drawn independently of each other and of the data

dp-accounting has the privacy loss distribution of each of these, of which its epsilon is an upper
bound (Koskela et al., AISTATS 2020; Doroshenko et al., PoPETs 2022). Neighbors differ in whether
one example has a gradient of zero, so that one changes a sum by at most S.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import optimize

from fedjax_lab import sampling
from fedjax_lab.transforms.accounting import LITTLE, TOLERANCE, bracket, dp_accounting, fineness
from fedjax_lab.transforms.guarantee import Setup


class Training(NamedTuple):
    """What one call of `Work.train` does in every round."""

    epochs: int
    steps: int | None  # after how many a pass is cut; None: never


class Account(NamedTuple):
    """All that the epsilon of a client's examples depends on, but the noise and the rounds."""

    batches: int  # b, in a pass over its examples
    batch_size: int  # B
    places: int  # of a batch
    steps: int  # K, in a round
    probability: float = 1.0  # p, that it takes part in a round


def accounts(
    setup: Setup, trainings: Sequence[Training], probability: float = 1.0
) -> tuple[Account, ...]:
    """One for each number of batches that clients have, ascending."""
    size = batch_size(setup)

    def of(batches):
        steps = [t.epochs * min(batches, t.steps or batches) for t in trainings]
        return Account(batches, size, places(setup), sum(steps), probability)

    return tuple(of(b) for b in sorted({_batches(n, size) for n in setup.sizes if n}))


def batch_size(setup: Setup) -> int:
    """B, which is at most the number of examples of the largest client."""
    return min(setup.batch_size, max(setup.sizes))


def places(setup: Setup) -> int:
    """How many examples a step has at most: B and three standard deviations."""
    size = batch_size(setup)
    return sampling.room(size, size * _batches(max(setup.sizes), size))


def _batches(n, size):
    return -(-n // size)


@functools.lru_cache(maxsize=1 << 14)
def epsilon(account: Account, noise: float, rounds: int, delta: float) -> float:
    """Epsilon at delta after so many rounds; 0 after none, infinite of too little noise, as in
    `accounting.epsilon`."""
    if rounds == 0 or account.steps == 0:
        return 0.0
    if noise < LITTLE:
        return math.inf
    return float(_round(account, noise).self_compose(rounds).get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=64)
def _round(account, noise):
    """The privacy loss distribution of a round."""
    library = dp_accounting().pld.privacy_loss_distribution
    q = 1 / account.batches
    fine = fineness(q, noise)
    slots = account.batches * account.batch_size
    step = library.from_truncated_subsampled_gaussian_mechanism(
        slots, q, min(account.places, slots), noise, value_discretization_interval=fine
    )
    steps = step.self_compose(account.steps)
    if account.probability == 1:
        return steps
    nothing = library.identity(value_discretization_interval=fine)
    return nothing.compute_mixture(steps, 1 - account.probability)


def worst(each: Sequence[Account], noise: float, rounds: int, delta: float) -> Account:
    """The account of the clients whose examples have the highest epsilon after so many rounds."""
    return max(each, key=lambda account: epsilon(account, noise, rounds, delta))


@functools.lru_cache(maxsize=256)
def noise_for(each: tuple[Account, ...], target: float, rounds: int, delta: float) -> float:
    """A noise multiplier with at most that epsilon for everybody, at most 0.002 too high."""
    if math.isinf(target):
        return 0.0
    account = each[0]  # mostly the worst: fewer batches hide an example less
    while True:
        noise = _noise_of_one(account, target, rounds, delta)
        account = worst(each, noise, rounds, delta)
        if epsilon(account, noise, rounds, delta) <= target:
            return noise


def _noise_of_one(account, target, rounds, delta):
    def excess(noise):
        return epsilon(account, noise, rounds, delta) - target

    low, high = bracket(lambda noise: excess(noise) <= 0)
    if low == high:
        return low
    root = optimize.brentq(excess, low, high, xtol=TOLERANCE)
    return root if excess(root) <= 0 else root + TOLERANCE
