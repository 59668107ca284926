"""What a private run guarantees, and the settings of the run that the guarantee depends on."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedjax_lab.errors import BadInput


class Setup(NamedTuple):
    """The properties of a run that epsilon depends on."""

    num_clients: int  # C, the number of training clients
    cohort: int  # m, the expected number of clients in a round
    rounds: int
    sizes: tuple[int, ...]  # n_i, the training examples of each client, for all seeds of the run
    batch_size: int
    epochs: int


class Guarantee(NamedTuple):
    """The (epsilon, delta) guarantee of a run for one unit of data: `Extra.guarantee`."""

    unit: str  # what is protected: "client", "example" or "upload"
    neighbors: str  # in words: the two populations or data sets between which it holds
    delta: float
    noise: float  # the noise multiplier sigma
    epsilons: Callable[[Sequence[int]], list[float]]
    # numbers of rounds, in ascending order -> epsilon after each of them
    rounds: int | None = None  # the number that the noise was computed for; None: it was given


def noise_multiplier(guarantee: Guarantee | None, clip: float) -> float:
    """Returns the noise multiplier sigma of a guarantee; 0 without a guarantee.

    Raises BadInput if `clip`, the largest norm, is infinite, since the noise is relative to it.
    """
    if guarantee is None:
        return 0.0
    if math.isinf(clip):
        raise BadInput("config.privacy.clip must be finite for a run with noise")
    return guarantee.noise
