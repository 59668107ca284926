"""MNIST, Fashion-MNIST, KMNIST, and any data set in MNIST's idx format.

Format: http://yann.lecun.com/exdb/mnist. Each of the four files has a header of big-endian 32-bit
words (0x0800 + the number of dimensions, then the size of each dimension), followed by unsigned
bytes. Each file may be gzipped.
"""

import gzip
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import places, safe
from fedjax_lab.data.dataset import Dataset, first_of_each, single_domain
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats.image_arrays import labels_of
from fedjax_lab.data.safe import Fault
from fedjax_lab.ranges import NotNegative

KINDS = {0x801: "labels", 0x803: "images"}  # by the first four bytes of a file
DIGITS = tuple("0123456789")
Pairs = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]  # training, test: x, y


class Release(NamedTuple):
    """A published data set, and where its files are searched."""

    source: str  # the name of the data source
    title: str
    classes: tuple[str, ...]
    folders: tuple[str, ...]  # relative to ~/.cache/fedjax_lab and data/
    elsewhere: tuple[str, ...] = ()  # folders that are searched before these


def files(prefix: str = "", test: str = "t10k") -> tuple[str, ...]:
    """The names of the four files: training images and labels, then test images and labels."""
    kinds = ("images-idx3", "labels-idx1")
    return tuple(f"{prefix}{part}-{kind}-ubyte" for part in ("train", test) for kind in kinds)


def remedy_of(name: str, other: str = "") -> str:
    """What to do if the files of a published data set are missing or damaged, for messages."""
    by_hand = f"{other}name the folder of the four files with --config.data.folder"
    return places.fetched(name, by_hand)


FILES = files()
MNIST = Release("mnist", "MNIST", DIGITS, ("mnist", "MNIST/raw", "MNIST"))
KMNIST = Release(
    "kmnist",
    "KMNIST",
    ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    ("kmnist", "KMNIST/raw", "KMNIST"),
)
FASHION = Release(
    "fashion_mnist",
    "Fashion-MNIST",
    (*"T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag".split(), "Ankle boot"),
    ("fashion-mnist", "FashionMNIST/raw"),
    ("/usr/share/datasets/fashion-mnist",),  # Debian's dataset-fashion-mnist
)
IDX_HELP = (
    "name the folder of the four files in MNIST's format with --config.data.folder (data sets that"
    " `fedjax-lab data get` has fetched are config.data.name=mnist, emnist, kmnist, fashion_mnist)"
)


@source(remedy_of("mnist"))
def mnist(*, folder: str = "", train_per_class: NotNegative[int] = 0) -> Dataset:
    """MNIST (LeCun et al. 1998): 60,000 training and 10,000 test images [28, 28, 1] of digits.

    folder: the folder of the four files, or one with a folder mnist (or torchvision's MNIST/raw)
        that has them; empty: ~/.cache/fedjax_lab and data/ are searched.
    train_per_class: the number of training images of each class, the first ones; 0: all.

    Raises BadInput as `idx` does.
    """
    return _published(MNIST, folder, train_per_class)


@source(remedy_of("kmnist"))
def kmnist(*, folder: str = "", train_per_class: NotNegative[int] = 0) -> Dataset:
    """KMNIST (Clanuwat et al. 2018): 60,000 + 10,000 images [28, 28, 1] of ten hiragana.

    folder: as in `mnist`, with a folder kmnist or torchvision's KMNIST/raw.
    train_per_class: as in `mnist`.
    """
    return _published(KMNIST, folder, train_per_class)


@source(remedy_of("fashion_mnist", "run `apt install dataset-fashion-mnist`, or "))
def fashion_mnist(*, folder: str = "", train_per_class: NotNegative[int] = 0) -> Dataset:
    """Fashion-MNIST (Xiao et al. 2017, arXiv:1708.07747): 60,000 + 10,000 images [28, 28, 1].

    folder: as in `mnist`, with a folder fashion-mnist or torchvision's FashionMNIST/raw; if it is
        empty, the folder of Debian's package dataset-fashion-mnist is searched, too.
    train_per_class: as in `mnist`.
    """
    return _published(FASHION, folder, train_per_class)


def _published(release: Release, folder: str, train_per_class: int) -> Dataset:
    where = find_folder(release, folder)
    dataset = as_dataset(where, read(where), release)
    if not train_per_class:
        return dataset
    kept = first_of_each(dataset.y[~dataset.test], train_per_class)  # training images come first
    rows = np.concatenate([kept, np.flatnonzero(dataset.test)])
    arrays = {key: getattr(dataset, key)[rows] for key in ("x", "y", "domain", "test")}
    return dataset._replace(**arrays)


def as_dataset(where: Path, pairs: Pairs, release: Release) -> Dataset:
    """The dataset of both pairs. Raises BadInput unless each label is the number of a class."""
    for _, y in pairs:
        labels_of(where, y, len(y), range(len(release.classes)))
    return single_domain(*pairs, release.classes, release.source)


def find_folder(release: Release, folder: str, names: tuple[str, ...] = FILES) -> Path:
    """The first folder that has all files of a published data set.

    Raises a Fault if there is none. A folder that the user names is returned even if files are
    missing in it; `read` then reports them.
    """
    around = [folder] if folder else places.PLACES
    inside = (f"{place}/{name}" for place in around for name in release.folders)
    first = (folder,) if folder else release.elsewhere
    looked = [Path(path).expanduser() for path in (*first, *inside)]
    where = next((p for p in looked if all(find(p, name) for name in names)), None)
    if where is None and not folder:
        raise Fault(f"{release.title} is in none of {', '.join(map(str, looked))}")
    return where or looked[0]


def has_files(release: Release, folder: str, names: tuple[str, ...] = FILES) -> bool:
    """Whether a folder has all files of a published data set."""
    return all(find(find_folder(release, folder, names), name) for name in names)


@source(IDX_HELP)
def idx(*, folder: str) -> Dataset:
    """A data set of your own in MNIST's format: images [R, H, W, 1], training examples first.

    folder: the folder of the four files.

    The classes are "0", "1", ... up to the highest label, at least ten.
    """
    where = places.path_of(folder, IDX_HELP, "folder")
    pairs = read(where)
    classes = map(str, range(max(10, *(int(y.max()) + 1 for _, y in pairs))))
    return single_domain(*pairs, tuple(classes), where.resolve().name)


def read(folder: Path, names: tuple[str, ...] = FILES) -> Pairs:
    """The training and the test examples of the four files: images [R, H, W, 1], labels [R]."""
    paths, arrays = [], []
    for name, dimensions in zip(names, (3, 1, 3, 1), strict=True):
        path = find(places.folder_of(folder), name)
        if path is None:
            raise Fault(f"{folder / name} (or {name}.gz) is missing")
        paths.append(path)
        arrays.append(read_file(path, dimensions))
    for i in (0, 2):
        if len(arrays[i]) != len(arrays[i + 1]):
            images, labels = f"{len(arrays[i])} images", f"{len(arrays[i + 1])} labels"
            raise Fault(f"{paths[i]} holds {images}, {paths[i + 1]} {labels}")
    train, y, test, test_y = arrays
    if train.shape[1:] != test.shape[1:]:
        sizes = " and ".join(f"{x.shape[1]} x {x.shape[2]}" for x in (train, test))
        raise Fault(f"{folder}: training and test images differ in size ({sizes})")
    return (train[..., None], y.astype(np.int32)), (test[..., None], test_y.astype(np.int32))


def find(folder: Path, name: str) -> Path | None:
    """The file of this name in the folder, plain or gzipped; None if there is neither."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def read_file(path: Path, dimensions: int) -> np.ndarray:
    """An idx file of unsigned bytes with this many dimensions, checked against its header."""
    with safe.reading(path), safe.opened(path) as stored_file:
        file = gzip.GzipFile(fileobj=stored_file) if path.suffix == ".gz" else stored_file
        shape = _shape(path, file.read(4 * (1 + dimensions)), dimensions)
        due, stored = math.prod(shape), path.stat().st_size
        if due > safe.DEFLATE * stored:
            raise Fault(f"{path} is truncated: {stored} bytes cannot hold {due}")
        safe.check_claim(due, stored)
        content = file.read(due + 1)
    if len(content) < due:
        raise Fault(f"{path} is truncated, {len(content)} bytes instead of {due}")
    if len(content) > due:
        raise Fault(f"{path} is too long, its header announces {due} bytes")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _shape(path: Path, head: bytes, dimensions: int) -> list[int]:
    """The shape in the header of a file; no size is 0."""
    magic = int.from_bytes(head[:4], "big")
    if len(head) >= 4 and magic != 0x800 + dimensions:
        kind = KINDS.get(magic, f"something else (magic number {magic})")
        raise Fault(f"{path} holds {kind}, not {KINDS[0x800 + dimensions]}")
    if len(head) < 4 * (1 + dimensions):
        raise Fault(f"{path} is truncated, it has only {len(head)} bytes")
    shape = np.frombuffer(head, ">u4", dimensions, offset=4).tolist()
    if min(shape) < 1:
        raise Fault(f"{path} is empty, the shape in its header is {shape}")
    return shape
