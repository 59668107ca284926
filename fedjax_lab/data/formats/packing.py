"""Packs short records into common rows, so that little of a batch is padding.

The first token of each record in a row is -1 - id, which tells a model where a record begins. What
follows the last token that is to be predicted is dropped, since nothing depends on it.
"""

from bisect import bisect_left, insort
from typing import NamedTuple

import numpy as np

from fedjax_lab.data.dataset import IGNORED


class Packed(NamedTuple):
    """Rows of several records."""

    x: np.ndarray  # [P, T] int32 token ids, -1 - id where a record begins
    y: np.ndarray  # [P, T] int32, the token after each one, or -1
    first: np.ndarray  # [P] the number of the first record of each row
    remark: str


def packed(x: np.ndarray, y: np.ndarray, group: np.ndarray, length: int) -> Packed:
    """Packs records x, y [R, T], where a row has records of one group [R] and at most `length`."""
    counted = y != IGNORED
    used = y.shape[1] - np.argmax(counted[:, ::-1], 1)  # up to the last label
    row, start = _places(used, group, length)
    shape = row.max() + 1, (start + used).max()
    ids, labels = np.zeros(shape, np.int32), np.full(shape, IGNORED, np.int32)
    for i, (r, s, n) in enumerate(zip(row, start, used, strict=True)):
        ids[r, s : s + n], labels[r, s : s + n] = x[i, :n], y[i, :n]
    ids[row, start] = -1 - ids[row, start]
    share = 100 * used.sum() / ids.size
    remark = f"packed: {len(x)} records in {len(ids)} rows, {share:.0f} % full"
    return Packed(ids, labels, np.unique(row, return_index=True)[1], remark)


def _places(used, group, length):
    """The row of each record and its start there: the row of its group with the least room."""
    row, start, count = np.zeros_like(used), np.zeros_like(used), 0
    rooms: dict[int, list[tuple[int, int]]] = {}  # of each group: (room, row), ascending
    for i, (n, its) in enumerate(zip(used.tolist(), group.tolist(), strict=True)):
        room = rooms.setdefault(its, [])
        place = bisect_left(room, (n, 0))
        free, row[i] = room.pop(place) if place < len(room) else (length, count)
        count = max(count, row[i] + 1)
        start[i] = length - free
        insort(room, (free - n, int(row[i])))
    return row, start
