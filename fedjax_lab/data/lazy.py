"""Arrays of examples that are read on demand, because all examples may not fit in memory.

A memory-mapped array of NumPy already is such an array. `LazyArray` is for all other files.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from tqdm import tqdm

from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput

PIECE = 2**26  # bytes that are read at a time to read a whole array


class LazyArray:
    """An array [R, ...] whose content is read on demand.

    `x[rows]` reads examples, and `np.asarray(x)` reads all of them. `rows` is a slice, an integer,
    or an array of integers or booleans. Threads may share the array if `read` is thread-safe.
    """

    def __init__(
        self,
        read: Callable[[np.ndarray], np.ndarray],
        shape: tuple[int, ...],
        dtype: DTypeLike,
        digest: str | None,
    ):
        """Makes an array of this shape and type.

        Args:
          read: numbers of examples [n], from 0 to R - 1 -> these examples [n, ...].
          shape: R and the shape of an example.
          dtype: the type of the numbers.
          digest: a text that changes with the content; None: unknown, so that the content must be
            read to compute one.
        """
        self.read = read
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.digest = digest

    @property
    def ndim(self) -> int:
        """The number of axes, including that of the examples."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        if rows.size and not -len(self) <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"examples {rows.min()} to {rows.max()} are not among {len(self)}")
        numbers = np.where(rows < 0, rows + len(self), rows).astype(np.int64).ravel()
        return self.read(numbers).reshape(*rows.shape, *self.shape[1:])

    def reshape(self, *shape: int) -> "LazyArray":
        """The same examples in another shape, whose first number must be R."""
        if shape[0] != len(self):
            raise ValueError(f"cannot reshape a lazy array of {len(self)} examples to {shape[0]}")
        (example,) = np.empty((1, *self.shape[1:]), bool).reshape(1, *shape[1:])
        return LazyArray(self.read, (len(self), *example.shape), self.dtype, self.digest)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a lazy array cannot be converted without a copy")
        return read_all(self, "reading").astype(dtype or self.dtype, copy=False)


def fill(made: np.ndarray, x: np.ndarray | LazyArray, rows: np.ndarray) -> None:
    """Writes the examples of rows [n], flattened and in x's type, to the array `made` [n, D].

    A row of -1 is padding and becomes zeros. Raises IndexError for a row that does not exist.
    """
    real = rows >= 0
    if rows.size and not -1 <= rows.min() <= rows.max() < len(x):
        raise IndexError(f"rows {rows.min()} to {rows.max()} are not among {len(x)} examples")
    if isinstance(x, LazyArray) or not x.flags.c_contiguous:
        made[real] = x[rows[real]].reshape(-1, made.shape[1])
    else:  # without an intermediate copy, and other threads can run meanwhile
        np.take(np.asarray(x).reshape(len(x), -1), rows, 0, out=made, mode="clip")
    made[~real] = 0


def example_bytes(x: np.ndarray | LazyArray) -> int:
    """The size in bytes of one example of x [R, ...]."""
    return math.prod(x.shape[1:]) * x.dtype.itemsize


def pieces(x: np.ndarray | LazyArray, rows: range | None = None) -> list[slice]:
    """Consecutive slices of x [R, ...] of at most PIECE bytes, or of one example if that is larger.

    rows: the rows that the slices cover; None: all.
    """
    rows = range(len(x)) if rows is None else rows
    size = max(1, PIECE // max(1, example_bytes(x)))
    return [slice(i, min(i + size, rows.stop)) for i in range(rows.start, rows.stop, size)]


def limits(x: np.ndarray | LazyArray) -> tuple[float, float]:
    """The lowest and the highest number in x [R, ...]. Raises BadInput if one is not finite."""
    each = np.array([(part.min(), part.max()) for part in (x[rows] for rows in pieces(x))])
    low, high = float(each[:, 0].min()), float(each[:, 1].max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise BadInput(f"the examples have NaN or infinite values; their range is {low} to {high}")
    return low, high


def read_all(x: LazyArray, title: str) -> np.ndarray:
    """All of x, with a progress bar of this title. Raises BadInput if it does not fit in memory."""
    what = f"the {len(x)} examples of {'x'.join(map(str, x.shape[1:]))} {x.dtype}"
    command = "`python -m fedjax_lab.data prepare`"
    remedy = f"write them to a folder with {command} and read that with config.data.name=records"
    safe.check_fits(len(x) * example_bytes(x), what, remedy)
    made = np.empty(x.shape, x.dtype)
    with tqdm(total=len(x), desc=title, unit=" examples", delay=2) as bar:
        for rows in pieces(x):
            made[rows] = x[rows]
            bar.update(rows.stop - rows.start)
    return made
