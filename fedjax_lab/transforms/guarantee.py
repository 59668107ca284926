"""What a private run promises, and what that depends on besides the mechanism."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedjax_lab.errors import BadInput


class Setup(NamedTuple):
    """A run as far as epsilon depends on it."""

    num_clients: int  # C, those that are trained on
    cohort: int  # m, how many clients a round is expected to have
    rounds: int
    sizes: tuple[int, ...]  # n_i, the training examples of each client, for all seeds of the run
    batch_size: int
    epochs: int


class Guarantee(NamedTuple):
    """(epsilon, delta) of a run, for a stated unit of what is protected: `Method.guarantee`."""

    unit: str  # "client", "example" or "upload"
    neighbors: str  # in words: between which two populations or data sets it holds
    delta: float
    noise: float  # the noise multiplier sigma
    epsilons: Callable[[Sequence[int]], list[float]]
    # numbers of rounds, which ascend -> epsilon after each of them
    rounds: int | None = None  # for which its noise was found; None: it is the same for any number


def noise_multiplier(guarantee: Guarantee | None, clip: float) -> float:
    """sigma of a run that clips norms to at most `clip`; 0 without a guarantee.

    BadInput where noise relative to an infinite clip is asked for.
    """
    if guarantee is None:
        return 0.0
    if math.isinf(clip):
        raise BadInput("config.privacy.clip must be finite where there is noise")
    return guarantee.noise
