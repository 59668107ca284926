"""Image files in folders <domain>/<class>/, split by FedBN's pickled lists.

A list <domain>_train.pkl or <domain>_test.pkl is a pair of paths, relative to the parent folder of
the data set, and class names (https://github.com/med-air/FedBN, utils/data_utils.py).
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats import pickles
from fedjax_lab.data.formats.columns import positions
from fedjax_lab.data.formats.images import Look, Split, class_images, image_dataset, rgb_or_gray
from fedjax_lab.data.places import locate
from fedjax_lab.data.safe import Fault
from fedjax_lab.errors import quoted

SUFFIXES = (".jpg", ".jpeg", ".png")
PARTS = ("train", "test")


class Release(NamedTuple):
    """The properties in which these data sets differ."""

    name: str  # of the cache files, with the version of the pixels
    folder: str  # the first folder of the listed paths
    domains: tuple[str, ...]
    classes: tuple[str, ...]


def read(release: Release, folder: str, size: int, choose: Callable) -> Dataset:
    """Images [R, size, size, 3] of all domains, training examples first; x is lazy.

    folder: the folder of the data set or its parent; empty: ~/.cache/fedjax_lab and data/ are
        searched. The lists may be in a folder split/ in it. Without any list, the files are split
        at random here, with a warning.
    choose: (labels of a training list) -> positions of the examples to keep.
    """
    where = find(release, folder).parent
    pairs: list[Sequence[Split]]
    lists = next((p for p in (where, where / "split") if safe.glob(p, "*_train.pkl")), None)
    if lists is None:
        logging.getLogger(__name__).warning(
            "%s has no lists *_train.pkl, so its images are split at random; results are not"
            " comparable with published ones",
            where,
        )
        pairs = [split_here(release, where, domain) for domain in release.domains]
    else:
        pairs = [
            [listed(release, where, lists / f"{domain}_{part}.pkl") for part in PARTS]
            for domain in release.domains
        ]
    train = [[split[row] for row in choose([y for _, y in split])] for split, _ in pairs]
    test = [split for _, split in pairs]
    look = Look(size, rgb_or_gray)
    return image_dataset(release.name, train, test, look, release.classes, release.domains)


def find(release: Release, folder: str) -> Path:
    """The folder of the first domain."""
    first = release.domains[0]
    return locate(folder, (first, f"{release.folder}/{first}"), Path.is_dir)


def listed(release: Release, where: Path, file: Path) -> Split:
    """The files and labels of one list, in its order."""
    paths, names = _columns(pickles.load(file), file)
    unknown = next((name for name in names if name not in release.classes), None)
    if unknown is not None:
        raise Fault(f"{file}: {quoted(unknown)} is not a class of {release.folder}")
    files = [where / inside(path, release.folder, file) for path in paths]
    return list(zip(files, positions(names, release.classes).tolist(), strict=True))


def split_here(release: Release, where: Path, domain: str) -> tuple[Split, Split]:
    """The training and test files of a domain: a permutation with seed 0, a fifth for testing."""
    folders = [where / domain / name for name in release.classes]
    both = class_images(folders, SUFFIXES)
    mixed = [both[row] for row in np.random.default_rng(0).permutation(len(both))]
    tests = len(mixed) // 5
    return mixed[tests:], mixed[:tests]


def _columns(made: Any, file: Path) -> list[list[str]]:
    """The two columns of a list. Raises a Fault unless they are strings and equally long."""
    columns = [_plain(column) for column in _plain(made)]
    texts = [value for column in columns for value in column if isinstance(value, (str, bytes))]
    sizes = [len(column) for column in columns]
    if len(sizes) != 2 or sizes[0] != sizes[1] or len(texts) != sum(sizes):
        raise Fault(f"{file} is not a pair of equally many paths and class names")
    if not texts:
        raise Fault(f"{file} is empty")
    return [[_text(value) for value in column] for column in columns]


def _plain(made: Any) -> list:
    """The elements of a sequence or an array as a list; a list of None for anything else."""
    made = made.tolist() if isinstance(made, np.ndarray) else made
    return list(made) if isinstance(made, (list, tuple)) else [None]


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def inside(text: str, folder: str, file: Path) -> Path:
    """A listed path relative to the folder of the data set.

    Raises a Fault if the path could lead out of that folder.
    """
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not text.isprintable():
        raise Fault(f"{file}: {quoted(text, 80)} is not in the data set's folder")
    return Path(*path.parts[path.parts[:1] == (folder,) :])
