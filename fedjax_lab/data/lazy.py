"""Examples that are read when they are asked for, because all of them may not fit in memory.

A memory-mapped array of NumPy is of this kind already. `LazyArray` is for all other files.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from tqdm import tqdm

from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput

PIECE = 2**26  # bytes that are read at a time where all of an array is needed


class LazyArray:
    """An array [R, ...] without its content: `x[rows]` reads examples, `np.asarray(x)` all of them.

    `rows` are a slice, an integer, or integers or flags in an array. Threads may share it if `read`
    allows that.
    """

    def __init__(
        self,
        read: Callable[[np.ndarray], np.ndarray],
        shape: tuple[int, ...],
        dtype: DTypeLike,
        digest: str | None,
    ):
        """An array of this shape and type.

        Args:
          read: numbers of examples [n], from 0 to R - 1 -> these examples [n, ...].
          shape: R and the shape of an example.
          dtype: the type of its numbers.
          digest: a text that is another one for other content; None: there is none, and who needs
            one reads the content.
        """
        self._read = read
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.digest = digest

    @property
    def ndim(self) -> int:
        """The number of axes, that of the examples among them."""
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
        return self._read(numbers).reshape(*rows.shape, *self.shape[1:])

    def reshape(self, *shape: int) -> "LazyArray":
        """The same examples in another shape, of which the first number is R."""
        if shape[0] != len(self):
            raise ValueError(f"a lazy array of {len(self)} examples keeps them, not {shape[0]}")
        (example,) = np.empty((1, *self.shape[1:]), bool).reshape(1, *shape[1:])
        return LazyArray(self._read, (len(self), *example.shape), self.dtype, self.digest)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("the content of a lazy array cannot be had without a copy")
        return read_all(self, "reading").astype(dtype or self.dtype, copy=False)


def example_bytes(x: np.ndarray | LazyArray) -> int:
    """The bytes of one example of x [R, ...]."""
    return math.prod(x.shape[1:]) * x.dtype.itemsize


def pieces(x: np.ndarray | LazyArray, rows: range | None = None) -> list[slice]:
    """Slices of x [R, ...], of at most PIECE bytes if an example is not larger, one after another.

    rows: those that the slices cover; None: all.
    """
    rows = range(len(x)) if rows is None else rows
    size = max(1, PIECE // max(1, example_bytes(x)))
    return [slice(i, min(i + size, rows.stop)) for i in range(rows.start, rows.stop, size)]


def limits(x: np.ndarray | LazyArray) -> tuple[float, float]:
    """The lowest and the highest number in x [R, ...]; BadInput where one is not finite."""
    each = np.array([(part.min(), part.max()) for part in (x[rows] for rows in pieces(x))])
    low, high = float(each[:, 0].min()), float(each[:, 1].max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise BadInput(f"the examples have NaN or infinite values: they are from {low} to {high}")
    return low, high


def read_all(x: LazyArray, title: str) -> np.ndarray:
    """All of x, with a progress bar of this title; BadInput where it does not fit in memory."""
    try:
        safe.check_memory(len(x) * example_bytes(x))
    except safe.TooLargeError as error:
        raise BadInput(
            f"the {len(x)} examples of {'x'.join(map(str, x.shape[1:]))} {x.dtype} do not fit in"
            f" memory: {error}; `python -m fedjax_lab.data prepare` writes them to a folder that"
            " config.data.name=records reads piece by piece"
        ) from error
    made = np.empty(x.shape, x.dtype)
    with tqdm(total=len(x), desc=title, unit=" examples", delay=2) as bar:
        for rows in pieces(x):
            made[rows] = x[rows]
            bar.update(rows.stop - rows.start)
    return made
