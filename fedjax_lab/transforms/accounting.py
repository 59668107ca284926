"""Epsilon of a run by dp-accounting: each function names an event, the library does the rest.

Epsilon is of privacy loss distributions, whose upper bounds are tight (Koskela et al., AISTATS
2020; Doroshenko et al., PoPETs 2022). How cohorts are drawn decides what "neighbors" are:

  poisson  populations that differ by one client more or less; one client changes the sum by S.
           Poisson sampling, truncated at the capacity (arXiv:2508.15089)
  fixed    populations of C clients that differ in the data of one; one client changes the sum by
           2 S. m of C clients without replacement are dominated by Poisson sampling with m / C and
           half the noise multiplier (Zhu et al., AISTATS 2022, arXiv:2106.08567), as jax_privacy
           does; dp-accounting's SampledWithoutReplacementDpEvent is a looser bound of the same

One epsilon of `fixed` is thus a stronger promise than the same epsilon of `poisson`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedjax_lab.errors import BadInput, check_not_negative, check_positive, quoted
from fedjax_lab.transforms import libraries
from fedjax_lab.transforms.guarantee import Guarantee, Setup

TOLERANCE = 1e-3  # of a noise multiplier that is looked for
MOST_LOSSES = 20_000  # in a distribution of those of a round
LITTLE = 0.05  # a noise multiplier below which epsilon is infinite
LEAST = 0.1  # a noise multiplier below which none is looked for


NEIGHBORS = {
    "poisson": "populations that differ by one client more or less",
    "fixed": "populations of as many clients that differ in the data of one",
}


class Run(NamedTuple):
    """All that epsilon depends on, but the noise and the rounds."""

    num_clients: int  # C
    cohort: int  # m
    sampling: str  # poisson or fixed
    capacity: int = 0  # of a Poisson sample: `sampling.room`
    per_round: int = 1  # releases in a round, all of the same cohort: exchanges of the method


@functools.lru_cache(maxsize=1 << 14)
def epsilon(run: Run, noise: float, rounds: int, delta: float) -> float:
    """Epsilon at delta after so many rounds; 0 after none.

    It is infinite without noise, and of a noise multiplier below 0.05 it is said to be: it would be
    in the hundreds, and would take minutes.
    """
    check_delta(delta)
    if rounds == 0:
        return 0.0
    if noise < LITTLE:
        return math.inf
    return float(_accountant(run, noise).compose(_event(run, noise), rounds).get_epsilon(delta))


def epsilons(run: Run, noise: float, delta: float, rounds: Sequence[int]) -> list[float]:
    """Epsilon at delta after each of these numbers of rounds.

    Each is computed for itself, which takes no longer than one after another, so that it does not
    depend on the others.
    """
    return [epsilon(run, noise, number, delta) for number in rounds]


@functools.lru_cache(maxsize=256)
def noise_for(run: Run, epsilon: float, rounds: int, delta: float) -> float:
    """The least noise multiplier with at most that epsilon at delta after so many rounds.

    It is at most 0.001 too high, or one below 0.1 that is enough; 0 for an infinite epsilon.
    """
    check_positive("privacy.epsilon", epsilon)
    check_delta(delta)
    if math.isinf(epsilon):
        return 0.0
    library = dp_accounting()

    def event(noise):
        return library.SelfComposedDpEvent(_event(run, noise), rounds)

    def is_enough(noise):
        return _accountant(run, noise).compose(event(noise)).get_epsilon(delta) <= epsilon

    low, high = bracket(is_enough)
    if low == high:
        return low
    return library.calibrate_dp_mechanism(
        lambda: _accountant(run, low),
        event,
        epsilon,
        delta,
        bracket_interval=library.ExplicitBracketInterval(low, high),
        tol=TOLERANCE,
    )


def bracket(is_enough: Callable[[float], bool]) -> tuple[float, float]:
    """(a noise multiplier that is too little, one that is enough), or twice one below 0.1 that is.

    Upwards from too little, since epsilon of far too little takes minutes.
    """
    low = 1.0
    while is_enough(low):
        if low < LEAST:
            return low, low
        low /= 2
    while not is_enough(2 * low):
        low *= 2
    return low, 2 * low


def promise(
    run: Run, setup: Setup, noise: float, epsilon: float, delta: float, neighbors: str = ""
) -> Guarantee | None:
    """The guarantee for each client, of the noise that was given or that gives this epsilon.

    Args:
      run: what is accounted for.
      setup: the run's.
      noise, epsilon, delta: settings of a transform: see `chosen_noise` and `chosen_delta`.
      neighbors: in words; empty: as cohorts are drawn.

    None without noise.
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
    """The noise multiplier that two settings of a transform ask for, of which 0 is not given.

    find: epsilon -> the noise multiplier with at most that. BadInput unless one of them is given.
    """
    check_not_negative("privacy.noise", noise)
    check_not_negative("privacy.epsilon", epsilon)
    if noise and epsilon:
        raise BadInput(
            f"config.privacy.noise={noise:g} and config.privacy.epsilon={epsilon:g} cannot both be"
            " given: one follows from the other"
        )
    if not (noise or epsilon):
        raise BadInput(
            "config.privacy.noise or config.privacy.epsilon must be given; without noise,"
            " --config.privacy.epsilon=inf"
        )
    return float(noise) if noise else find(epsilon)


def chosen_delta(delta: float, num_clients: int) -> float:
    """The delta that a setting of a transform asks for; C^-1.1 of C clients where it is 0."""
    if not delta and num_clients < 2:
        raise BadInput("config.privacy.delta must be given: C^-1.1 is no delta where C is 1")
    delta = delta or num_clients**-1.1
    check_delta(delta)
    return delta


def check_delta(delta: float) -> None:
    """BadInput unless delta is between 0 and 1."""
    if not 0 < delta < 1:
        raise BadInput(f"config.privacy.delta must be above 0 and below 1, got {quoted(delta)}")


def dp_accounting() -> Any:
    """The library. BadInput where it is not installed."""
    return libraries.of_privacy("dp_accounting", "dp-accounting", "epsilon")


def _accountant(run, noise):
    library = dp_accounting()
    relation = library.NeighboringRelation.ADD_OR_REMOVE_ONE
    return library.pld.PLDAccountant(relation, fineness(run.cohort / run.num_clients, noise))


def fineness(q: float, noise: float) -> float:
    """How far apart the losses of a distribution are: as fine as its losses of about q / sigma ask
    for.

    Epsilon is an upper bound however coarse it is. The largest losses are about as large as
    (1/2 + 8 sigma) / sigma^2; of little noise they would be too many for a fine distribution.

    q: the rate of sampling.
    """
    largest = (0.5 + 8 * noise) / noise**2
    return max(min(1e-3, 0.02 * q / noise), largest / MOST_LOSSES)


def _event(run, noise):
    """What a round releases. Several releases of one cohort are one with less noise."""
    library = dp_accounting()
    sigma, q = noise / math.sqrt(run.per_round), run.cohort / run.num_clients
    if run.sampling == "fixed":
        return library.PoissonSampledDpEvent(q, library.GaussianDpEvent(sigma / 2))
    if not 0 < run.capacity < run.num_clients:
        return library.PoissonSampledDpEvent(q, library.GaussianDpEvent(sigma))
    return library.TruncatedSubsampledGaussianDpEvent(run.num_clients, q, run.capacity, sigma)
