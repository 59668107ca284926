"""Image files in folders <domain>/<class>/, split by FedBN's pickled lists.

A list <domain>_train.pkl or <domain>_test.pkl is a pair of paths, relative to the parent folder of
the data set, and class names (https://github.com/med-air/FedBN, utils/data_utils.py).
"""

import logging
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats import pickles
from fedjax_lab.data.formats.columns import positions
from fedjax_lab.data.formats.images import Split, arrays, of_classes, rgb_or_gray
from fedjax_lab.data.places import locate
from fedjax_lab.errors import BadInput, quoted

SUFFIXES = (".jpg", ".jpeg", ".png")
PARTS = ("train", "test")


class Release(NamedTuple):
    """The properties in which these data sets differ."""

    name: str  # of the cache files, with the version of the pixels
    folder: str  # the first folder of the listed paths
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    remedy: str


def read(release: Release, folder: str, size: int, choose: Callable) -> Dataset:
    """Images [R, size, size, 3] of all domains, training examples first; x is lazy as in `arrays`.

    folder: the folder of the data set or its parent; empty: ~/.cache/fedjax_lab and data/ are
        searched. The lists may be in a folder split/ in it. Without any list, the files are split
        at random here, with a warning.
    choose: (labels of a training list) -> positions of the examples to keep.
    """
    first = release.domains[0]
    names = (first, f"{release.folder}/{first}")
    where = locate(folder, names, release.remedy, Path.is_dir).parent
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
            (
                listed(release, where, lists / f"{domain}_train.pkl"),
                listed(release, where, lists / f"{domain}_test.pkl"),
            )
            for domain in release.domains
        ]
    train = [_kept(split, choose(split.labels)) for split, _ in pairs]
    test = [split for _, split in pairs]
    made = arrays(release.name, train, test, size, rgb_or_gray, release.remedy)
    return Dataset(**made, classes=release.classes, domains=release.domains)


def listed(release: Release, where: Path, file: Path) -> Split:
    """The files and labels of one list, in its order."""
    paths, names = _columns(pickles.load(file, release.remedy), file, release.remedy)
    unknown = next((name for name in names if name not in release.classes), None)
    if unknown is not None:
        raise BadInput(
            f"{file}: {quoted(unknown)} is not a class of {release.folder}: {release.remedy}"
        )
    files = [where / inside(path, release.folder, file, release.remedy) for path in paths]
    return Split(files, positions(names, release.classes).tolist())


def split_here(release: Release, where: Path, domain: str) -> tuple[Split, Split]:
    """The training and test files of a domain: a permutation with seed 0, a fifth for testing."""
    folders = [where / domain / name for name in release.classes]
    both = of_classes(folders, SUFFIXES, release.remedy)
    order = np.random.default_rng(0).permutation(len(both.files))
    tests = len(order) // 5
    return _kept(both, order[tests:]), _kept(both, order[:tests])


def _kept(split: Split, rows: np.ndarray) -> Split:
    return Split([split.files[row] for row in rows], [split.labels[row] for row in rows])


def _columns(made: Any, file: Path, remedy: str) -> list[list[str]]:
    """The two columns of a list. Raises BadInput unless they are strings and equally long."""
    parts = [_texts(column) for column in _plain(made) or ()]
    columns = [texts for texts in parts if texts is not None]
    if len(parts) != 2 or len(columns) != 2 or len(columns[0]) != len(columns[1]):
        raise BadInput(f"{file} is not a pair of equally many paths and class names: {remedy}")
    if not columns[0]:
        raise BadInput(f"{file} is empty: {remedy}")
    return columns


def _plain(made: Any) -> list | None:
    """The elements of a sequence or an array as a list; None for anything else."""
    made = made.tolist() if isinstance(made, np.ndarray) else made
    return list(made) if isinstance(made, (list, tuple)) else None


def _texts(column: Any) -> list[str] | None:
    """The strings of a column; None if it holds anything but strings."""
    column = _plain(column)
    if column is None or not all(isinstance(value, (str, bytes)) for value in column):
        return None
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in column]


def inside(text: str, folder: str, file: Path, remedy: str) -> Path:
    """A listed path relative to the folder of the data set.

    Raises BadInput if the path could lead out of that folder.
    """
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not text.isprintable():
        raise BadInput(f"{file}: {quoted(text, 80)} is not in the data set's folder: {remedy}")
    return Path(*path.parts[path.parts[:1] == (folder,) :])
