"""Epsilon for one example of a client that trains by DP-SGD in the rounds that it takes part in.

  step    a Poisson sample of b B examples at rate 1 / b, truncated at the capacity of a batch
          (arXiv:2508.15089), and the Gaussian mechanism with noise multiplier sigma
  round   K such steps with probability p, and no step otherwise; which of the two is public
  run     T rounds, whose cohorts are drawn independently of each other and of the data

dp-accounting computes the privacy loss distribution of each of these; its epsilon is an upper bound
(Koskela et al., AISTATS 2020; Doroshenko et al., PoPETs 2022). Two neighbors differ in whether one
example has a gradient of zero, so that one example changes a sum by at most S.
"""

import functools
import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from fedjax_lab import sampling
from fedjax_lab.transforms.accounting import LITTLE, dp_accounting, fineness, least_noise
from fedjax_lab.transforms.guarantee import Setup


class Training(NamedTuple):
    """The length of one call of `Work.train`, which is the same in every round."""

    epochs: int
    steps: int | None  # the number of steps after which a pass is cut; None: never


class Account(NamedTuple):
    """Everything that the epsilon of a client's examples depends on, except noise and rounds."""

    batches: int  # b, the batches of a pass over the client's examples
    batch_size: int  # B
    places: int  # the capacity of a batch
    steps: int  # K, the steps of a round
    probability: float = 1.0  # p, the probability that the client takes part in a round


def accounts(
    setup: Setup, trainings: Sequence[Training], probability: float = 1.0
) -> tuple[Account, ...]:
    """Returns one account for each number of batches that a client has, in ascending order.

    trainings: the calls of `Work.train` in a round.
    probability: p, the probability that a client takes part in a round.
    """
    size = batch_size(setup)

    def account_of(batches):
        steps = [t.epochs * min(batches, t.steps or batches) for t in trainings]
        return Account(batches, size, places(setup), sum(steps), probability)

    return tuple(account_of(b) for b in sorted({_batches(n, size) for n in setup.sizes if n}))


def batch_size(setup: Setup) -> int:
    """Returns B: the batch size, but at most the number of examples of the largest client."""
    return min(setup.batch_size, max(setup.sizes))


def places(setup: Setup) -> int:
    """Returns the capacity of a batch: B plus six standard deviations of a Poisson sample."""
    size = batch_size(setup)
    return sampling.room(size, size * _batches(max(setup.sizes), size))


def _batches(n, size):
    return -(-n // size)


@functools.lru_cache(maxsize=1 << 14)
def epsilon(account: Account, noise: float, rounds: int, delta: float) -> float:
    """Returns epsilon at delta after this number of rounds.

    As in `accounting.epsilon`, it is 0 after no round, and infinite if there is too little noise.
    """
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
    """Returns the account with the highest epsilon after this number of rounds."""
    return max(each, key=lambda account: epsilon(account, noise, rounds, delta))


@functools.lru_cache(maxsize=256)
def noise_for(each: tuple[Account, ...], target: float, rounds: int, delta: float) -> float:
    """Returns a noise multiplier whose epsilon is at most `target` for the examples of all clients.

    It is at most 0.002 above the smallest such multiplier, and 0 for an infinite target.
    """
    if math.isinf(target):
        return 0.0
    account = each[0]  # usually the worst: fewer batches hide an example less
    while True:
        noise = least_noise(partial(_excess, account, target, rounds, delta))
        account = worst(each, noise, rounds, delta)
        if epsilon(account, noise, rounds, delta) <= target:
            return noise


def _excess(account, target, rounds, delta, noise, fine):
    return epsilon(account, noise, rounds, delta) - target
