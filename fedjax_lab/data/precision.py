"""Numbers that a type cannot tell apart, such as times since 1970 in float32."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fedjax_lab.data import safe
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.errors import BadInput

SAMPLE = 10_000  # rows that are examined
MOST_SORTED = 2**20  # numbers of a sample in which `merged` searches
FINE = 1e-6  # share of a column's range below which a difference does not count
LOST = 0.01  # share of a column's differences that may become 0
NOISE = 1e-13  # relative rounding error of computed float64; constants of them differ by it


class Merged(NamedTuple):
    """A column of which different numbers become equal."""

    column: int
    different: int  # numbers in a sample
    left: int  # of them, different ones after the conversion
    mean: float

    def __str__(self) -> str:
        return f"of {self.different} different ones {self.left} are left"


def merged(x: Any, kind: DTypeLike = np.float32) -> Merged | None:
    """The first column of x [R, ...] that loses differences by conversion to a type; None: none.

    A sample of the rows is examined. Differences that are rounding errors, or that no type of this
    precision holds next to the column's range, do not count.
    """
    if x.dtype.itemsize < 4 or x.dtype == kind:
        return None
    numbers = np.sort(_sample(x), 0)
    with np.errstate(over="ignore", invalid="ignore"):
        gaps = np.diff(numbers, axis=0).astype(np.float64)  # of integers exact
        equal = np.diff(numbers.astype(kind), axis=0) == 0
    least = FINE * gaps.sum(0)
    if x.dtype.kind == "f":
        least = np.maximum(least, NOISE * np.abs(numbers).max(0))
    differs = gaps > least
    lost = (differs & equal).sum(0)
    bad = np.flatnonzero(lost > LOST * differs.sum(0))
    if not len(bad):
        return None
    at = bad[0]
    different = 1 + int(differs[:, at].sum())
    return Merged(int(at), different, different - int(lost[at]), float(numbers[:, at].mean()))


def _sample(x):
    """The numbers of some examples by column or channel [., D]; of one column for labels [R]."""
    size = int(np.prod(x.shape[1:]))
    count = min(len(x), SAMPLE, max(1, MOST_SORTED // max(1, size)))
    if count < len(x):
        x = x[np.sort(np.random.default_rng(0).choice(len(x), count, replace=False))]
    return np.asarray(x).reshape(-1, 1 if len(x.shape) in (1, 3) else x.shape[-1])


def exact(what: str, x: Any) -> Any:
    """Numbers [R, ...] as float32, or as float64 where float32 cannot tell them apart.

    what: the numbers in words, for the message.

    Raises BadInput if float64 cannot tell them apart either.
    """
    if not merged(x):
        return as_type(x, np.float32)
    if lost := merged(x, np.float64):
        raise BadInput(
            f"{what} are too large for float64, column {lost.column} among them: {lost}; subtract"
            " its smallest number from it"
        )
    return as_type(x, np.float64)


def check_labels(what: str, y: np.ndarray) -> None:
    """Raises BadInput if float32 cannot tell the labels y [R, ...] apart, which are numbers."""
    if lost := merged(y):
        raise BadInput(
            f"{what} are numbers that float32 cannot tell apart: {lost}; subtract a number near"
            f" their mean, such as {lost.mean:.4g}, from them, and add it to the predictions"
        )


def check_unmasked(what: str, values: Any) -> None:
    """Raises BadInput if `values` is a masked array of NumPy with masked entries."""
    if isinstance(values, np.ma.MaskedArray) and (count := np.ma.count_masked(values)):
        row = np.argwhere(np.ma.getmaskarray(values))[0][0]
        raise BadInput(
            f"{what} has {count} masked values, first in row {row}: leave these rows out, or put"
            " numbers in their place with its method `filled`"
        )


def as_type(x: Any, kind: DTypeLike) -> Any:
    """The array in a type. One that is not in memory is converted when it is read."""
    if x.dtype == kind:
        return x
    if isinstance(x, (LazyArray, np.memmap)):
        digest = getattr(x, "digest", None)
        digest = digest and f"{digest} as {np.dtype(kind)}"
        return LazyArray(lambda rows: x[rows].astype(kind), x.shape, kind, digest)
    if x.dtype.itemsize == np.dtype(kind).itemsize == 1:
        return np.asarray(x).view(kind)
    with safe.reading("x", "use fewer examples, or data.name=mapped"):
        safe.check_memory(np.size(x) * np.dtype(kind).itemsize)
    return np.asarray(x).astype(kind)
