"""What every data source returns: arrays in one flat pool."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_lab.data.cache import checksum

TYPES = ("uint8", "int8", "int16", "int32", "float32")  # of examples; uint8: pixels


class Dataset(NamedTuple):
    """R examples. The pool keeps the type of x: they become floats when a batch is fetched.

    x may be lazy: a memory-mapped array, or a `LazyArray`.
    """

    x: Any  # [R, H, W, channels] uint8, or [R, ...] of another of TYPES
    y: np.ndarray  # [R] int32, 0 .. len(classes) - 1
    domain: np.ndarray  # [R] int32, 0 .. len(domains) - 1
    test: np.ndarray  # [R] bool
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    files: tuple[str, ...] = ()  # paths of the original images, one for each row, where there are
    client: np.ndarray | None = None  # [R] int32, the natural user of each example, where there are
    users: tuple[str, ...] = ()  # their names
    license: str = ""  # of the data, as their publisher states it
    citation: str = ""  # what to cite, in words
    origin: np.ndarray | None = None  # [R] int32, the text that each is cut from, where many are
    test_is_drawn: bool = False  # by the source, from data without a test set

    def digests(self) -> dict[str, str]:
        """A digest of each part: PARTS, the users only where they are known. Reads all examples."""
        parts = {
            "examples": {"x": self.x},
            "labels": {"y": self.y, "classes": np.array(self.classes)},
            "domains": {"domain": self.domain, "domains": np.array(self.domains)},
            "test flags": {"test": self.test},
        }
        if self.client is not None:
            parts[USERS] = {"client": self.client, "users": np.array(self.users)}
        return {name: checksum(arrays) for name, arrays in parts.items()}

    def fingerprint(self) -> str:
        """16 hexadecimal digits that tell data sets apart by their content. Reads all examples."""
        return fingerprint_of(self.digests())


USERS = "users"
PARTS = ("examples", "labels", "domains", "test flags", USERS)  # that a fingerprint is made from


def fingerprint_of(digests: Mapping[str, str]) -> str:
    """The fingerprint of a data set with these digests, of which only those of PARTS matter."""
    joined = "".join(digests.get(name, "") for name in PARTS)
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def pooled(x: Any, train: Sequence[ArrayLike], test: Sequence[ArrayLike]) -> dict[str, Any]:
    """The arrays of a Dataset whose training examples come first, domain after domain.

    x [R, ...]: the examples in that order, maybe lazy; train, test: the labels of each domain.
    """
    parts = [np.asarray(labels, np.int32) for labels in (*train, *test)]
    counts = [len(labels) for labels in parts]
    return {
        "x": x,
        "y": np.concatenate(parts),
        "domain": np.repeat(np.tile(np.arange(len(train), dtype=np.int32), 2), counts),
        "test": np.repeat(np.arange(len(parts)) >= len(train), counts),
    }


def of_one_domain(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    classes: tuple[str, ...],
    name: str,
) -> Dataset:
    """Images [., H, W, channels] and labels [.] of both splits in one pool, training first."""
    arrays = pooled(np.concatenate([train[0], test[0]]), [train[1]], [test[1]])
    return Dataset(**arrays, classes=classes, domains=(name,))


def first_of_each(labels: ArrayLike, count: int) -> np.ndarray:
    """Ascending positions of the first `count` examples of each class, all where there are less."""
    y = np.asarray(labels)
    kept = [np.flatnonzero(y == label)[:count] for label in np.unique(y)]
    return np.sort(np.concatenate(kept))
