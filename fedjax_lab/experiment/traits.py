"""What distinguishes the clients of a run: `makers` has one row for each trait."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import local_settings, unlike_models
from fedjax_lab.types import Kind, PyTree, Skew


class Dealt(NamedTuple):
    """The clients of one seed [C + N], new clients last."""

    order: np.ndarray  # the number that each client had before new clients were chosen
    sizes: np.ndarray  # its number of training examples
    seed: int


Maker = Callable[[Dealt], PyTree]  # the clients of a seed -> their trait, [C + N] in each leaf


def makers(config: ml_collections.ConfigDict) -> dict[str, Maker]:
    """The maker of each trait that the clients of a run have, except for their `pace`.

    `experiment.clocks` adds the pace, which depends on the plan of the run.
    """
    partition, shares = config.partition, unlike_models.shares(config.model)
    table: Any = local_settings.read(config.local)
    rows: dict[str, tuple[Any, Maker]] = {
        "skew": (partition.feature_skew != "none", skew),
        "capacity": (partition.capacity, partial(capacity, partition.capacity)),
        "kind": (shares, partial(kind, shares)),
        "settings": (table, partial(local_settings.client_settings, table, config.local)),
    }
    return {name: maker for name, (is_set, maker) in rows.items() if is_set}


def skew(clients: Dealt) -> Skew:
    """The inputs of the clients' feature skews."""
    order: Any = clients.order
    rng = np.random.default_rng([clients.seed, 1])
    drawn = rng.integers(2**32, size=len(order), dtype=np.uint32)
    return Skew(order.astype(np.int32), drawn[order])


def capacity(levels: tuple[float, ...], clients: Dealt) -> np.ndarray:
    """The clients' capacities.

    levels: of each client in the order in which they are dealt, or fewer levels, each for equally
        many clients at random.
    """
    number = len(clients.order)
    if len(levels) > number:
        raise BadInput(
            f"config.partition.capacity has {len(levels)} numbers, but there are {number} clients"
        )
    dealt = np.resize(np.array(levels, np.float32), number)
    if len(levels) != number:
        dealt = np.random.default_rng([clients.seed, 3]).permutation(dealt)
    return dealt[clients.order]


def kind(shares: tuple[float, ...], clients: Dealt) -> Kind:
    """The clients' kinds, drawn at random. shares: the share of the clients of each kind."""
    number = len(clients.order)
    ends = np.cumsum(shares)[:-1] * number
    dealt = np.searchsorted(ends, np.arange(number) + 0.5).astype(np.int32)
    most = np.bincount(dealt, minlength=len(shares)).tolist()
    if not all(most):
        raise BadInput(
            f"config.model.kinds: of {number} clients, a kind has none; use more clients, fewer"
            " kinds or larger config.model.shares"
        )
    drawn = np.random.default_rng([clients.seed, 4]).permutation(dealt)
    return Kind(drawn[clients.order], tuple(most))
