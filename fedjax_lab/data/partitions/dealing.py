"""Calls partitions and checks the parts that they return.

A partition has one of two signatures. Most partitions use labels and domains only:
`(y, domain, num_clients, rng, *, settings)`. A partition whose first argument is named `examples`
gets all information about the training examples: `(examples, num_clients, rng, *, settings)`, where
num_clients and rng are passed by name. Both return, for each client, positions among the training
examples; see `partition`.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.data.partitions.partitioning import Parts
from fedjax_lab.errors import BadInput, quoted

BY_CLASS = frozenset(  # the partitions of this package that divide each class
    "dirichlet classes_per_client client_dirichlet shards extended_dirichlet semantic".split()
)


class Examples(NamedTuple):
    """The R training examples that a partition divides."""

    x: np.ndarray | LazyArray  # [R, ...]; may be read on demand
    y: np.ndarray  # [R] int32
    domain: np.ndarray  # [R] int32
    client: np.ndarray | None  # [R] int32, the natural user of each example; None: unknown
    users: tuple[str, ...]  # names of the natural users
    embed: Callable[[], np.ndarray]  # () -> [R, E] float32, embeddings by config.embedding


def takes_examples(function: Callable) -> bool:
    """Whether a partition has the second signature, with `examples`."""
    return next(iter(inspect.signature(function).parameters), "") == "examples"


def call(
    function: Callable, examples: Examples, num_clients: int, rng: np.random.Generator
) -> Parts:
    """Calls a partition of either signature and returns its parts."""
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
    """Calls a partition and checks its parts.

    num_clients: the number of clients; 0 if the partition chooses it.
    name: the name of the partition, for messages.

    Returns the parts as int32 arrays. Raises BadInput unless there is an array of valid positions
    for each client.
    """
    return _checked(name, call(function, examples, num_clients, rng), num_clients, len(examples.y))


def _checked(name, parts, num_clients, count):
    """The parts as int32 arrays. Raises BadInput unless they are positions in 0..count-1."""
    is_list = isinstance(parts, (Sequence, np.ndarray))
    if not is_list or not len(parts) or len(parts) != (num_clients or len(parts)):
        raise BadInput(
            f"partition {name} must return a list of {num_clients or 'one or more'} arrays, the"
            f" positions of each client's examples, not {quoted(parts)}"
        )
    parts = [np.asarray(part) for part in parts]
    for i, part in enumerate(parts):
        if part.ndim != 1 or part.dtype.kind not in "iu":
            what = f"{part.dtype} of shape {list(part.shape)}"
            raise BadInput(f"partition {name} must return integers [N], but client {i} has {what}")
        beyond = part[(part < 0) | (part >= count)]
        if len(beyond):
            position = f"the position {beyond[0]}, which is not in 0..{count - 1}"
            raise BadInput(f"partition {name} gives client {i} {position}")
    _check_disjoint(name, parts, count)
    return [part.astype(np.int32) for part in parts]


def _check_disjoint(name, parts, count):
    """Raises BadInput if a position occurs twice."""
    positions = np.concatenate(parts).astype(np.int64)
    twice = np.flatnonzero(np.bincount(positions, minlength=count) > 1)
    if len(twice):
        holders = [i for i, part in enumerate(parts) for _ in range(np.sum(part == twice[0]))]
        to = f"client {holders[0]} twice"
        if holders[0] != holders[1]:
            to = f"client {holders[0]} and to client {holders[1]}"
        raise BadInput(
            f"partition {name} gives example {twice[0]} to {to}; {len(twice)} examples are given"
            " more than once, but each may belong to one client only"
        )


def owners(parts: Parts, client: np.ndarray, num_users: int) -> np.ndarray | None:
    """The client that holds each user's examples, [U] int; -1 if no client does.

    client [R]: the user of each example. Returns None if the examples of some user are divided
    among several clients.
    """
    holder = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    user = client[np.concatenate(parts)]
    owner = np.full(num_users, -1)
    owner[user] = holder
    return owner if np.array_equal(owner[user], holder) else None


def mixed_by_number(number: np.ndarray, count: int, rng: np.random.Generator) -> Parts:
    """As `by_number`, in random order."""
    mixed = rng.permutation(len(number)).astype(np.int32)
    return [mixed[part] for part in by_number(number[mixed], count)]


def by_number(number: np.ndarray, count: int) -> Parts:
    """The ascending positions of each number in 0..count-1; other numbers are left out."""
    order = np.argsort(number, kind="stable").astype(np.int32)
    ends = np.searchsorted(number[order], np.arange(count + 1))
    return [order[begin:end] for begin, end in zip(ends[:-1], ends[1:], strict=True)]
