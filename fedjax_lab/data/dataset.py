"""The return type of every data source: arrays of all training and test examples."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_lab.data.cache import checksum

TYPES = ("uint8", "int8", "int16", "int32", "float32", "float16")  # of examples; uint8: pixels

IGNORED = -1  # the label of a token or pixel that does not count
MOST_CLASSES = 100_000  # higher labels are not numbers of classes, unless there are so many names


class Dataset(NamedTuple):
    """R training and test examples with their labels.

    x keeps its dtype; examples are converted to float32 when a batch is read. x may be lazy: a
    memory-mapped array or a `LazyArray`.
    """

    x: Any  # [R, H, W, channels] uint8, or [R, ...] of another of TYPES
    y: np.ndarray  # [R] int32, 0 .. len(classes) - 1; in tasks without classes [R, ...] numbers
    domain: np.ndarray  # [R] int32, 0 .. len(domains) - 1
    test: np.ndarray  # [R] bool
    classes: tuple[str, ...]  # () if the labels are numbers that are not classes
    domains: tuple[str, ...]
    files: tuple[str, ...] = ()  # path of the original image of each row; () if there are none
    client: np.ndarray | None = None  # [R] int32, natural user of each example; None: unknown
    users: tuple[str, ...] = ()  # names of the natural users
    license: str = ""  # as the publisher of the data states it
    citation: str = ""  # as text
    # [R] int32, the text, image or group (such as a patient) that an example is from; training,
    # validation and test sets never divide it
    origin: np.ndarray | None = None
    test_is_drawn: bool = False  # whether the test set is drawn at random
    remarks: tuple[str, ...] = ()  # lines on what the source did with the values, for the user
    class_bytes: np.ndarray | None = None  # [K] int32, bytes of text of each class that is a token
    overlap: int = 0  # how many examples before and after it share content with an example

    @property
    def has_classes(self) -> bool:
        """Whether each example has one class."""
        return bool(self.classes) and np.ndim(self.y) == 1 and self.y.dtype.kind in "iu"

    @property
    def strata(self) -> np.ndarray:
        """The class of each example [R], or 0 if each example does not have one class."""
        return np.asarray(self.y) if self.has_classes else np.zeros(len(self.y), np.int32)

    @property
    def stratum_names(self) -> tuple[str, ...]:
        """The names of the strata."""
        return self.classes if self.has_classes else ("all",)

    def digests(self) -> dict[str, str]:
        """The digest of each of PARTS (of the users only if they are known). Reads all examples."""
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
        """16 hexadecimal digits that identify the content of the data set. Reads all examples."""
        return fingerprint_of(self.digests())


def numerals(y: np.ndarray) -> tuple[str, ...]:
    """The names "0", "1", ... of the classes up to the highest label [R, ...].

    () if the labels are not whole numbers from 0, or IGNORED for some tokens or pixels.
    """
    lowest = 0 if y.ndim == 1 else IGNORED
    if y.dtype.kind == "f" or not lowest <= y.min() <= y.max() < MOST_CLASSES:
        return ()
    return tuple(map(str, range(max(int(y.max()), 0) + 1)))


def are_numerals(classes: Sequence[str]) -> bool:
    """Whether the names of classes are their numbers, as those of `numerals`."""
    return all(name == str(number) for number, name in enumerate(classes))


def without_marks(y: np.ndarray, marks: Sequence[int]) -> np.ndarray:
    """Whole labels [R, ...] of tokens or pixels, with IGNORED in place of these marks."""
    return np.where(np.isin(y, marks), IGNORED, y.astype(np.int64)).astype(np.int32)


USERS = "users"
PARTS = ("examples", "labels", "domains", "test flags", USERS)  # the parts in a fingerprint


def fingerprint_of(digests: Mapping[str, str]) -> str:
    """The fingerprint of a data set with these digests; only the digests of PARTS are used."""
    joined = "".join(digests.get(name, "") for name in PARTS)
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def pooled(x: Any, train: Sequence[ArrayLike], test: Sequence[ArrayLike]) -> dict[str, Any]:
    """The arrays x, y, domain and test of a `Dataset`: training examples first, then test examples.

    x [R, ...]: the examples of both splits, ordered by domain; may be lazy.
    train, test: the labels of each domain.
    """
    parts = [np.asarray(labels, np.int32) for labels in (*train, *test)]
    counts = [len(labels) for labels in parts]
    return {
        "x": x,
        "y": np.concatenate(parts),
        "domain": np.repeat(np.tile(np.arange(len(train), dtype=np.int32), 2), counts),
        "test": np.repeat(np.arange(len(parts)) >= len(train), counts),
    }


def single_domain(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    classes: tuple[str, ...],
    name: str,
) -> Dataset:
    """The dataset of images [., H, W, channels] and labels [.] of both splits, training first."""
    arrays = pooled(np.concatenate([train[0], test[0]]), [train[1]], [test[1]])
    return Dataset(**arrays, classes=classes, domains=(name,))


def first_of_each(labels: ArrayLike, count: int) -> np.ndarray:
    """Ascending positions of the first `count` examples of each class (all if there are fewer)."""
    y = np.asarray(labels)
    kept = [np.flatnonzero(y == label)[:count] for label in np.unique(y)]
    return np.sort(np.concatenate(kept))
