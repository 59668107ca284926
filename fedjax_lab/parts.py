"""Federations of some of the clients, for a block of rounds or of scores: on the host, in NumPy.

A part is made by part(ids, **shared). Its clients are those of `ids` [N], ascending, the last of
which may be repeated; `shared` are the rows that all of them see, `global_test` or `unseen` [S],
padded with -1. All parts of one kind have the same shapes.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from fedjax_lab.data import stream
from fedjax_lab.types import ROWS, Federation, Rows

NO_ROWS: Any = dict.fromkeys(ROWS)

READERS = 4  # threads that read the examples of a part: a disk serves several requests at once

Part = Callable[..., Federation]


def of_rows(pool: Federation, whole: Federation, sets: Sequence[str]) -> Part:
    """Parts with rows alone: the examples are those of `pool`, which all parts share.

    pool: examples and lists of rows, on the devices.
    whole: the same federation in NumPy.
    sets: of each client's own rows, those that are needed.
    """

    def part(ids, **shared):
        held = {name: _of_clients(getattr(whole, name), ids) for name in sets}
        lists = {name: replace(held[name], list=getattr(pool, name).list) for name in sets}
        return pool._replace(**{**NO_ROWS, **lists, **shared})

    return part


def with_examples(whole: Federation, sets: Sequence[str], clients: int, shared: int = 0) -> Part:
    """Parts whose pool has the examples that their clients need, and no others.

    whole: a federation in NumPy; of its x only `x[rows]` is asked, for ascending rows.
    sets: of each client's own rows, those that are needed.
    clients: in a part.
    shared: rows that all of them see.
    """
    readers = ThreadPoolExecutor(READERS)
    rooms = {name: most_rows(getattr(whole, name), clients) for name in sets}
    room = min(len(whole.y), sum(rooms.values()) + shared)

    def part(ids, **shared):
        asked = {name: _packed(getattr(whole, name), ids, rooms[name]) for name in sets}
        lists = [rows.list for rows in asked.values()] + list(shared.values())
        needed = np.unique(np.concatenate(lists))
        needed = needed[needed >= 0]
        rows = {
            name: replace(rows, list=_places(needed, rows.list)) for name, rows in asked.items()
        }
        shared = {name: _places(needed, rows) for name, rows in shared.items()}
        x = np.empty((room, example_size(whole)), whole.x.dtype)
        x[len(needed) :] = 0
        lots = (np.array_split(a, READERS) for a in (x[: len(needed)], needed))
        list(readers.map(lambda made, rows: stream.fill(made, whole.x, rows), *lots))
        return whole._replace(
            x=x,
            y=_filled(whole.y[needed], room),
            domain=_filled(whole.domain[needed], room),
            **{**NO_ROWS, **rows, **shared},
        )

    return part


def pieces(count: int, length: int) -> list[np.ndarray]:
    """The numbers below `count` in pieces of one length; the last may overlap the one before."""
    length = min(length, count)
    starts = [min(start, count - length) for start in range(0, count, length)]
    return [np.arange(start, start + length) for start in starts]


def example_bytes(whole: Federation) -> int:
    """Of one example in the pool, and of what the pool says of it."""
    return example_size(whole) * whole.x.dtype.itemsize + 2 * whole.y.itemsize


def example_size(whole: Federation) -> int:
    """How many numbers an example has."""
    return math.prod(whole.x.shape[1:])


def most_rows(rows: Rows, clients: int) -> int:
    """How many rows so many clients can hold."""
    return int(np.sort(rows.count)[::-1][:clients].sum())


def _of_clients(rows, ids):
    """The rows of clients `ids` in the list that all have."""
    return replace(rows, start=rows.start[ids], count=rows.count[ids])


def _packed(rows, ids, room):
    """The rows of clients `ids` in a list of their own, padded with -1."""
    clients, places = np.unique(ids, return_inverse=True)
    start, count = rows.start[clients], rows.count[clients]
    begin = np.cumsum(count, dtype=np.int32) - count
    held = rows.list[np.repeat(start - begin, count) + np.arange(count.sum())]
    padded = np.pad(held, (0, room - len(held)), constant_values=-1)
    return Rows(begin[places], count[places], padded, rows.longest)


def _places(needed, rows):
    """Where each row is in the ascending `needed`; -1 stays."""
    return np.where(rows < 0, -1, np.searchsorted(needed, rows)).astype(np.int32)


def _filled(a, room):
    full = np.zeros((room, *a.shape[1:]), a.dtype)
    full[: len(a)] = a
    return full
