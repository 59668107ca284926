"""The epsilon of a run, computed by dp-accounting from a description of the mechanism.

Epsilon is computed from privacy loss distributions, whose upper bounds are tight (Koskela et al.,
AISTATS 2020; Doroshenko et al., PoPETs 2022). The sampling of the cohorts determines which
populations are "neighbors":

  poisson  populations that differ by one additional or missing client; one client changes the sum
           by S. Poisson sampling, truncated at the capacity (arXiv:2508.15089)
  fixed    populations of C clients that differ in the data of one; one client changes the sum by
           2 S. Sampling m of C clients without replacement is dominated by Poisson sampling at rate
           m / C with half the noise multiplier (Zhu et al., AISTATS 2022, arXiv:2106.08567), as in
           jax_privacy; dp-accounting's SampledWithoutReplacementDpEvent is a looser bound of the
           same mechanism

An epsilon for `fixed` is thus a stronger guarantee than the same epsilon for `poisson`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.transforms import libraries
from fedjax_lab.transforms.guarantee import Guarantee, Setup

TOLERANCE = 1e-3  # accepted error of a noise multiplier that is searched for
MOST_LOSSES = 20_000  # largest number of values in the privacy loss distribution of a round
LITTLE = 0.05  # epsilon is reported as infinite for a noise multiplier below this
LEAST = 0.1  # the search for a noise multiplier stops below this


NEIGHBORS = {
    "poisson": "populations that differ by one client more or less",
    "fixed": "populations of as many clients that differ in the data of one",
}


class Run(NamedTuple):
    """Everything that epsilon depends on, except the noise and the number of rounds."""

    num_clients: int  # C
    cohort: int  # m
    sampling: str  # poisson or fixed
    capacity: int = 0  # largest number of clients in a Poisson sample: `sampling.room`
    per_round: int = 1  # releases in a round, all of the same cohort: one per exchange


@functools.lru_cache(maxsize=1 << 14)
def epsilon(run: Run, noise: float, rounds: int, delta: float) -> float:
    """Returns epsilon at delta after this number of rounds; 0 after no round.

    Epsilon is infinite without noise. It is also reported as infinite for a noise multiplier below
    0.05: its value would be in the hundreds, and computing it would take minutes.
    """
    check_delta(delta)
    if rounds == 0:
        return 0.0
    if noise < LITTLE:
        return math.inf
    return float(_accountant(run, noise).compose(_event(run, noise), rounds).get_epsilon(delta))


def epsilons(run: Run, noise: float, delta: float, rounds: Sequence[int]) -> list[float]:
    """Returns epsilon at delta after each of these numbers of rounds, computed separately.

    This takes no longer than computing each value from the one before.
    """
    return [epsilon(run, noise, number, delta) for number in rounds]


@functools.lru_cache(maxsize=256)
def noise_for(run: Run, epsilon: float, rounds: int, delta: float) -> float:
    """Returns the smallest noise multiplier whose epsilon at delta is at most `epsilon`.

    The result is at most 0.001 above the smallest one. Below 0.1 it may be any multiplier that
    suffices. For an infinite epsilon it is 0.

    rounds: the number of rounds after which epsilon holds.
    """
    check_delta(delta)
    if math.isinf(epsilon):
        return 0.0

    def excess(noise, fine):
        event = dp_accounting().SelfComposedDpEvent(_event(run, noise), rounds)
        return _accountant(run, fine).compose(event).get_epsilon(delta) - epsilon

    return least_noise(excess)


def least_noise(excess: Callable[[float, float], float]) -> float:
    """Returns a noise multiplier that is at most 0.001 above the smallest one that is enough.

    Any multiplier below 0.1 that is enough is returned. The search starts at 1 and changes the
    multiplier by factors of 2, because computing epsilon for one that is far too small takes
    minutes.

    excess: (noise multiplier, the one whose `fineness` is used) -> epsilon minus its target.
    """
    from scipy import optimize  # imported here because it takes a while

    low = 1.0
    while excess(low, low) <= 0:
        if low < LEAST:
            return low
        low /= 2
    while excess(2 * low, 2 * low) > 0:
        low *= 2
    root = optimize.brentq(excess, low, 2 * low, (low,), TOLERANCE)
    return root if excess(root, low) <= 0 else root + TOLERANCE


def promise(
    run: Run, setup: Setup, noise: float, epsilon: float, delta: float, neighbors: str = ""
) -> Guarantee | None:
    """Returns the guarantee for each client, or None for a run without noise.

    Args:
      run: the sampling and the releases that epsilon is computed for.
      setup: the run's number of clients and of rounds.
      noise, epsilon, delta: settings of a transform: see `chosen_noise` and `chosen_delta`.
      neighbors: the neighboring populations in words; empty: those of the sampling in `run`.
    """
    delta = chosen_delta(delta, setup.num_clients)
    sigma = chosen_noise(noise, epsilon, lambda e: noise_for(run, e, setup.rounds, delta))
    if sigma == 0:
        return None
    dp_accounting()
    return Guarantee(
        unit="client",
        neighbors=neighbors or NEIGHBORS[run.sampling],
        delta=delta,
        noise=sigma,
        epsilons=functools.partial(epsilons, run, sigma, delta),
        rounds=setup.rounds if epsilon else None,
    )


def chosen_noise(noise: float, epsilon: float, find: Callable[[float], float]) -> float:
    """Returns the noise multiplier that a transform's settings `noise` and `epsilon` determine.

    A setting of 0 counts as not given. Raises BadInput unless exactly one of the two is given.

    find: epsilon -> the noise multiplier whose epsilon is at most that value.
    """
    if noise and epsilon:
        raise BadInput(
            f"config.privacy.noise={noise:g} and config.privacy.epsilon={epsilon:g} cannot both be"
            " given: one follows from the other"
        )
    if not (noise or epsilon):
        raise BadInput(
            "config.privacy.noise or config.privacy.epsilon must be given; for a run without"
            " noise, set --config.privacy.epsilon=inf"
        )
    return float(noise) if noise else find(epsilon)


def chosen_delta(delta: float, num_clients: int) -> float:
    """Returns a transform's setting `delta`, or N^-1.1 for N = `num_clients` where it is 0.

    Raises BadInput unless the result is between 0 and 1.
    """
    if not delta and num_clients < 2:
        raise BadInput(
            "config.privacy.delta must be given: its default, N^-1.1 for N clients or examples, is"
            " not below 1 for N = 1"
        )
    delta = delta or num_clients**-1.1
    check_delta(delta)
    return delta


def check_delta(delta: float) -> None:
    """Raises BadInput unless delta is between 0 and 1."""
    if not 0 < delta < 1:
        raise BadInput(f"config.privacy.delta must be above 0 and below 1, got {quoted(delta)}")


def dp_accounting() -> Any:
    """Returns the library dp_accounting. Raises BadInput if it is not installed."""
    return libraries.import_library("dp_accounting", "dp-accounting", "epsilon")


def _accountant(run, noise):
    library = dp_accounting()
    relation = library.NeighboringRelation.ADD_OR_REMOVE_ONE
    return library.pld.PLDAccountant(relation, fineness(run.cohort / run.num_clients, noise))


def fineness(q: float, noise: float) -> float:
    """Returns the discretization interval of a privacy loss distribution.

    It is 0.02 q / sigma, where q / sigma is the typical size of the losses, and at most 0.001.
    Epsilon is an upper bound for any interval. The largest losses are about
    (1/2 + 8 sigma) / sigma^2. With little noise a fine distribution would thus have too many
    values, and the interval is wider.

    q: the sampling rate.
    noise: the noise multiplier sigma.
    """
    largest = (0.5 + 8 * noise) / noise**2
    return max(min(1e-3, 0.02 * q / noise), largest / MOST_LOSSES)


def _event(run, noise):
    """The event of one round. Several releases of one cohort equal one release with less noise."""
    library = dp_accounting()
    sigma, q = noise / math.sqrt(run.per_round), run.cohort / run.num_clients
    if run.sampling == "fixed":
        return library.PoissonSampledDpEvent(q, library.GaussianDpEvent(sigma / 2))
    if not 0 < run.capacity < run.num_clients:
        return library.PoissonSampledDpEvent(q, library.GaussianDpEvent(sigma))
    return library.TruncatedSubsampledGaussianDpEvent(run.num_clients, q, run.capacity, sigma)
