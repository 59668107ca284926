"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), the "python version", unpacked or as an archive.

Format: https://www.cs.toronto.edu/~kriz/cifar.html. The files are pickled dictionaries of Python 2.
`data` [N, 3072] uint8 holds the red, green and blue plane of each image, row by row.
"""

import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset, single_domain
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats import pickles
from fedjax_lab.data.formats.image_arrays import images_of, labels_of
from fedjax_lab.data.places import fetched, locate
from fedjax_lab.data.safe import Fault


class Release(NamedTuple):
    """The file names and keys in which the two data sets differ."""

    name: str
    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: bytes  # keys of the dictionaries
    label_names: bytes
    num_classes: int


CIFAR10 = Release(
    name="cifar10",
    archive="cifar-10-python.tar.gz",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    labels=b"labels",
    label_names=b"label_names",
    num_classes=10,
)
CIFAR100 = Release(
    name="cifar100",
    archive="cifar-100-python.tar.gz",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    meta="meta",
    labels=b"fine_labels",
    label_names=b"fine_label_names",
    num_classes=100,
)


def _remedy(release: Release) -> str:
    parts = ", ".join((*release.train, release.test, release.meta))
    return fetched(
        release.name,
        f"fetch {release.archive} from https://www.cs.toronto.edu/~kriz/cifar.html, leave it packed"
        f" or unpack it to {release.folder}/ with {parts}, and name its folder with"
        " --config.data.folder",
    )


@source(_remedy(CIFAR10))
def cifar10(*, folder: str = "") -> Dataset:
    """CIFAR-10: 50,000 training and 10,000 test images [32, 32, 3].

    folder: the folder with the batch files, with a folder of them, or with the archive as it was
        fetched; empty: ~/.cache/fedjax_lab and data/ are searched.
    """
    return _read(CIFAR10, folder)


@source(_remedy(CIFAR100))
def cifar100(*, folder: str = "") -> Dataset:
    """CIFAR-100: 50,000 + 10,000 images [32, 32, 3] with its 100 fine labels.

    folder: as in `cifar10`.
    """
    return _read(CIFAR100, folder)


def find(release: Release, folder: str) -> Path:
    """The first file of the data set, or the archive."""
    first = release.train[0]
    return locate(folder, (first, f"{release.folder}/{first}", release.archive))


def _read(release: Release, folder: str) -> Dataset:
    examples, first = (*release.train, release.test), find(release, folder)
    parts = (*examples, release.meta)
    where = first if first.name == release.archive else first.parent
    if where is first:
        made = _unpacked(where, release.folder, parts)
    else:
        made = {part: pickles.load(where / part) for part in parts}
    classes = _classes(made[release.meta], release, where / release.meta)
    *train, test = (_examples(made[part], release, where / part) for part in examples)
    x, y = map(np.concatenate, zip(*train, strict=True))
    return single_domain((x, y), test, classes, release.name)


def _unpacked(archive: Path, folder: str, parts: tuple[str, ...]) -> dict[str, Any]:
    """The content of these parts of an archive; nothing is written to disk."""
    names = {f"{folder}/{part}": part for part in parts}
    content, claimed = {}, 0
    with safe.reading(archive), safe.opened(archive) as file:
        stored = archive.stat().st_size
        with tarfile.open(fileobj=file, mode="r:gz") as members:
            for member in members:
                claimed += member.size
                safe.check_claim(claimed, stored)
                if member.isreg() and member.name in names:
                    stream = members.extractfile(member)
                    assert stream is not None  # it is None only if the member is no regular file
                    content[names[member.name]] = stream.read()
    for name, part in names.items():
        if part not in content:
            raise Fault(f"{archive} has no {name}")
    return {part: pickles.loads(content[part], f"{archive}/{part}") for part in parts}


def _classes(made: Any, release: Release, file: Path) -> tuple[str, ...]:
    """The names of the classes."""
    names = made.get(release.label_names) if isinstance(made, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
        raise Fault(f"{file} has no list {release.label_names.decode()}")
    if len(names) != release.num_classes:
        raise Fault(f"{file} has {len(names)} classes, not {release.num_classes}")
    return tuple(name.decode("ascii", "replace") for name in names)


def _examples(made: Any, release: Release, file: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images [R, 32, 32, 3] and labels [R] in the dictionary of one file."""
    key = release.labels
    if not isinstance(made, dict) or not {b"data", key} <= made.keys():
        raise Fault(f"{file} is not a dictionary with data and {key.decode()}")
    data = images_of(file, made[b"data"], (3072,))
    labels = labels_of(file, made[key], len(data), range(release.num_classes))
    images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels
