"""Federations of a subset of the clients, for a block of rounds or of scores, on the host in NumPy.

A part is made by part(ids, **shared). Its clients are `ids` [N], ascending, possibly with
repetitions; `shared` are rows that all clients use, `global_test` or `unseen` [S], padded with -1.
Arrays with an entry for each client or each example contain only this process's segment (`owners`):
`ids` are the N clients of this process. All parts of one kind have the same shapes.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from fedjax_lab.data import lazy
from fedjax_lab.engine import shards
from fedjax_lab.engine.host.assignment import Owners
from fedjax_lab.types import ROWS, Federation, Rows

NO_ROWS: Any = dict.fromkeys(ROWS) | {"traits": {}}

READERS = 4  # threads that read the examples of a part: a disk serves several requests at once
LOTS = 4 * READERS  # pieces of work for these threads, because pieces take different times

Part = Callable[..., Federation]


def row_subsets(pool: Federation, whole: Federation, sets: Sequence[str], owners: Owners) -> Part:
    """Makes parts that contain only rows; all parts share the examples of `pool`.

    pool: examples, on the devices.
    whole: the same federation in NumPy.
    sets: the names of the clients' sets of rows that are needed.
    """

    def part(ids, **shared):
        held = {name: _dealt(getattr(whole, name), ids, owners) for name in sets}
        return pool._replace(**{**NO_ROWS, **held, **shared})

    return part


def with_examples(
    whole: Federation, sets: Sequence[str], clients: int, shared: int, owners: Owners
) -> Part:
    """Makes parts whose pool contains only the examples that their clients need.

    Each process reads the examples of its clients, and its part of the shared rows.

    whole: a federation in NumPy; its x is only read as `x[rows]` with ascending rows.
    sets: the names of the clients' sets of rows that are needed.
    clients: the number of clients of a segment.
    shared: the number of shared rows.
    """
    readers = ThreadPoolExecutor(READERS)
    own_room = min(len(whole.y), sum(most_rows(getattr(whole, s), clients) for s in sets))
    share = -(-shared // len(owners.segments))
    room = owners.even(own_room + share)

    def part(ids, **shared):
        held = {name: _dealt(getattr(whole, name), ids, owners) for name in sets}
        needed = np.unique(np.concatenate([[-1], *(rows.list for rows in held.values())]))[1:]
        first = owners.process * room
        rows = {name: replace(a, list=_places(needed, a.list, first)) for name, a in held.items()}
        seen = {name: _in_shares(rows, share, room, own_room) for name, rows in shared.items()}
        asked = np.full(room, -1)
        asked[: len(needed)] = needed
        for of_all in shared.values():  # at most one set
            of_process = of_all[owners.process * share :][:share]
            asked[own_room : own_room + len(of_process)] = of_process
        return whole._replace(**_examples(whole, asked, readers), **{**NO_ROWS, **rows, **seen})

    return part


def _examples(whole, rows, readers):
    """The pool of these rows, with zeros for -1, as fields of a federation."""
    x = np.empty((len(rows), example_size(whole)), whole.x.dtype)
    lots = (np.array_split(a, LOTS) for a in (x, rows))
    list(readers.map(lambda made, rows: lazy.fill(made, whole.x, rows), *lots))
    y, domain = (a[rows] for a in (whole.y, whole.domain))  # copies
    y[rows < 0], domain[rows < 0] = 0, 0
    return {"x": x, "y": y, "domain": domain}


def example_bytes(whole: Federation) -> int:
    """The bytes of one example in the pool, including its label and its domain."""
    label = math.prod(whole.y.shape[1:]) * whole.y.itemsize
    return example_size(whole) * whole.x.dtype.itemsize + label + whole.domain.itemsize


def example_size(whole: Federation) -> int:
    """The number of values of an example."""
    return math.prod(whole.x.shape[1:])


def most_rows(rows: Rows, clients: int) -> int:
    """The largest number of rows that any `clients` clients hold together."""
    return int(np.sort(rows.count)[::-1][:clients].sum())


def _dealt(rows, ids, owners):
    """The rows of clients `ids` in lists for the devices of this process, padded with -1.

    The rows of a repeated client are listed once.
    """
    room = max(1, most_rows(rows, len(ids) // owners.devices))
    count = np.where(np.diff(ids, prepend=-1) > 0, rows.count[ids], 0)
    dealt = shards.laid_out(rows, rows.start[ids], count, owners.devices, room)
    first = owners.process * len(dealt.list)
    return replace(dealt, start=(dealt.start + first).astype(np.int32))


def _places(needed, rows, first):
    """The position of each row in a pool whose entries from `first` on are the rows `needed`."""
    return np.where(rows < 0, -1, first + np.searchsorted(needed, rows)).astype(np.int32)


def _in_shares(rows, share, room, own_room):
    """The positions of shared rows in the pool.

    Each process has `room` examples: `own_room` of its clients, then its part of the shared rows.
    """
    number = np.arange(len(rows))
    places = number // share * room + own_room + number % share
    return np.where(rows < 0, -1, places).astype(np.int32)
