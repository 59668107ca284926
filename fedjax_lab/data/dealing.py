"""How a partition is called, and how its parts are checked.

A partition has one of two forms. Most look at labels and domains alone:
`(y, domain, num_clients, rng, *, settings)`. One whose first argument is named `examples` gets all
that is known of the training examples: `(examples, num_clients, rng, *, settings)`, of which
num_clients and rng are given by name. Both return positions among the training examples for each
client; see `partition`.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.data.partition import Parts
from fedjax_lab.errors import BadInput, quoted


class Examples(NamedTuple):
    """The R training examples that a partition divides."""

    x: np.ndarray | LazyArray  # [R, ...]; read when it is asked for
    y: np.ndarray  # [R] int32
    domain: np.ndarray  # [R] int32
    client: np.ndarray | None  # [R] int32, the natural user of each example, where there are
    users: tuple[str, ...]  # their names
    embed: Callable[[], np.ndarray]  # () -> [R, E] float32, the vectors of config.embedding


def takes_examples(function: Callable) -> bool:
    """Whether a partition is of the second form."""
    return next(iter(inspect.signature(function).parameters), "") == "examples"


def call(
    function: Callable, examples: Examples, num_clients: int, rng: np.random.Generator
) -> Parts:
    """What a partition of either form gives."""
    if takes_examples(function):
        return function(examples, num_clients=num_clients, rng=rng)
    return function(examples.y, examples.domain, num_clients, rng)


def deal(
    function: Callable,
    examples: Examples,
    num_clients: int,
    rng: np.random.Generator,
    name: str,
) -> Parts:
    """The same, as arrays of int32. BadInput, by this name, unless each client gets positions.

    num_clients: 0 where the partition decides how many clients there are.
    """
    return _checked(name, call(function, examples, num_clients, rng), num_clients, len(examples.y))


def _checked(name, parts, num_clients, count):
    """The parts as arrays of int32. BadInput unless they are positions among so many examples."""
    is_list = isinstance(parts, (Sequence, np.ndarray))
    if not is_list or not len(parts) or len(parts) != (num_clients or len(parts)):
        raise BadInput(
            f"partition {name} must return a list of {num_clients or 'one or more'} arrays, the"
            f" positions that each client holds, not {quoted(parts)}"
        )
    parts = [np.asarray(part) for part in parts]
    for i, part in enumerate(parts):
        if part.ndim != 1 or part.dtype.kind not in "iu":
            what = f"{part.dtype} of shape {list(part.shape)}"
            raise BadInput(f"partition {name} must give integers [N], but client {i} gets {what}")
        beyond = part[(part < 0) | (part >= count)]
        if len(beyond):
            there = f"the position {beyond[0]}, which is not in 0..{count - 1}"
            raise BadInput(f"partition {name} gives client {i} {there}")
    return [part.astype(np.int32) for part in parts]


def owners(parts: Parts, client: np.ndarray, num_users: int) -> np.ndarray | None:
    """The client that holds each user's examples, [U] int, -1 where nobody does.

    client [R]: the user of each example. None where the examples of a user are divided.
    """
    holder = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    user = client[np.concatenate(parts)]
    owner = np.full(num_users, -1)
    owner[user] = holder
    return owner if np.array_equal(owner[user], holder) else None


def by_number(number: np.ndarray, count: int) -> Parts:
    """The positions of each number from 0 to count - 1, ascending; others are left out."""
    order = np.argsort(number, kind="stable").astype(np.int32)
    ends = np.searchsorted(number[order], np.arange(count + 1))
    return [order[begin:end] for begin, end in zip(ends[:-1], ends[1:], strict=True)]
