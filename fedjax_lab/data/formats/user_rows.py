"""Assembles a dataset from the examples of each natural user and split."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import precision, safe
from fedjax_lab.data.dataset import MOST_CLASSES, Dataset
from fedjax_lab.data.formats.columns import positions
from fedjax_lab.errors import BadInput, quoted

DIGITS, UPPER = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CHARACTERS = tuple(DIGITS + UPPER + UPPER.lower())  # classes of FEMNIST, in order of their labels
FEMNIST = (28, 28)  # pixels of an image; LEAF's files have them in one list
OBJECT = 200  # approximate size of a Python object in bytes


class UserRows(NamedTuple):
    """The examples of one user in one split."""

    user: str
    test: bool
    x: Any  # [n, ...], or a list
    y: np.ndarray  # [n] int32


def assembled(parts: Sequence[UserRows], x: Any, classes: Sequence[str], name: str) -> Dataset:
    """The Dataset of these parts, with a single domain of this name; users are sorted by name.

    x [R, ...]: the examples of all parts in their order; may be lazy.
    """
    users = sorted({part.user for part in parts})
    number = positions([part.user for part in parts], users)
    counts = [len(part.y) for part in parts]
    y = np.concatenate([part.y for part in parts]).astype(np.int32)
    return Dataset(
        x=x,
        y=y,
        domain=np.zeros(len(y), np.int32),
        test=np.repeat([part.test for part in parts], counts),
        classes=tuple(classes),
        domains=(name,),
        client=np.repeat(number, counts),
        users=tuple(users),
    )


def numbers(parts: Sequence[UserRows], name: str) -> Dataset:
    """The Dataset of parts whose x are arrays. Raises BadInput if the shapes of examples differ."""
    shapes = {part.x.shape[1:]: part.user for part in parts}
    if len(shapes) > 1:
        (one, user), (other, another), *_ = shapes.items()
        raise BadInput(
            f"examples of user {quoted(user, 60)} have shape {list(one)}, but those of user"
            f" {quoted(another, 60)} have {list(other)}"
        )
    is_femnist = shapes.keys() == {(*FEMNIST, 1)}
    classes = characters(parts) if is_femnist else numbered(parts)
    x = joined([part.x for part in parts])
    x = precision.exact(f"{name}: the numbers of x", x) if x.dtype == np.float64 else x
    return assembled(parts, x, classes, name)


def characters(parts: Sequence[UserRows]) -> tuple[str, ...]:
    """The class names of FEMNIST: 10 if all labels are digits, else 62.

    Raises BadInput for higher labels.
    """
    top = highest(parts)
    if top >= len(CHARACTERS):
        user = next(part.user for part in parts if part.y.max() == top)
        raise BadInput(
            f"user {quoted(user, 60)} has the label {top}, but images of 784 pixels are read as"
            f" FEMNIST, whose labels are 0 .. {len(CHARACTERS) - 1}; give images of other classes"
            " as data.name=arrays, with an array `client`"
        )
    return tuple(DIGITS) if top < len(DIGITS) else CHARACTERS


def numbered(parts: Sequence[UserRows]) -> tuple[str, ...]:
    """The numbers from 0 to the highest label, as class names."""
    return tuple(map(str, range(highest(parts) + 1)))


def highest(parts: Sequence[UserRows]) -> int:
    """The highest label."""
    return max(int(part.y.max()) for part in parts)


def labels(values: Any) -> np.ndarray:
    """Labels [n] int32, integers from 0 (possibly given as floats). Raises ValueError otherwise."""
    given = np.array(values, np.float64)
    if given.ndim != 1 or not np.isfinite(given).all() or (given % 1).any():
        raise ValueError("labels are not integers")
    if given.min(initial=0) < 0 or given.max(initial=0) >= MOST_CLASSES:
        raise ValueError(f"labels are not from 0 to {MOST_CLASSES - 1}")
    return given.astype(np.int32)


def images_or_vectors(values: Any) -> np.ndarray:
    """Finite numbers as [n, D] or [n, H, W, channels]; 784 numbers are an image [28, 28, 1].

    Such images become uint8 if that is lossless; others are in float64. Raises ValueError if values
    are malformed.
    """
    with np.errstate(over="ignore"):
        x = np.array(values, np.float64)
        narrow = x.astype(np.float32)
    if x.ndim < 2 or 0 in x.shape or not np.isfinite(narrow).all():
        raise ValueError("x must hold finite numbers, equally many in each example")
    if x.shape[1:] in (FEMNIST, (FEMNIST[0] * FEMNIST[1],)):
        return as_bytes(narrow).reshape(-1, *FEMNIST, 1)
    return x[..., None] if x.ndim == 3 else x


def as_bytes(x: np.ndarray) -> np.ndarray:
    """Gray levels in 0..1 as uint8 if all are multiples of 1/255; otherwise x unchanged.

    This takes a quarter of the memory, and config.data.normalize=unit restores the same numbers.
    """
    if x.min(initial=0) < 0 or x.max(initial=0) > 1:
        return x
    levels = np.rint(x * 255)
    return levels.astype(np.uint8) if np.abs(x * 255 - levels).max(initial=0) < 1e-3 else x


def joined(arrays: list[np.ndarray]) -> np.ndarray:
    """The concatenated arrays; if only some are uint8, these are converted back to floats."""
    if len({array.dtype for array in arrays}) == 1:
        return np.concatenate(arrays)
    return np.concatenate([a / np.float32(255) if a.dtype == np.uint8 else a for a in arrays])


class Room:
    """Tracks the memory of what has been read, so that reading stops before the memory is full."""

    def __init__(self) -> None:
        """Starts with nothing read."""
        self.held, self.checked = 0, 0

    def take(self, x: Any) -> None:
        """Counts these examples. Raises TooLargeError if memory does not suffice to join them."""
        parts = [x] if isinstance(x, np.ndarray) else x
        self.held += sum(OBJECT + getattr(part, "nbytes", 0) for part in parts)
        if self.held > self.checked + safe.SMALL:  # a check is slower than reading a small user
            safe.check_memory(self.held)
            self.checked = self.held
