"""The MNIST family: Fashion-MNIST, and any set of four files in MNIST's idx format.

Format: http://yann.lecun.com/exdb/mnist. A header of big-endian 32-bit words (0x0800 + the number
of dimensions, then each dimension), then unsigned bytes. Each file may be gzipped.
"""

import gzip
import math
from pathlib import Path
from typing import IO

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
FASHION_FOLDER = "fashion-mnist"
FASHION_FOLDERS = (
    "/usr/share/datasets/fashion-mnist",  # Debian's dataset-fashion-mnist
    "~/.cache/fedjax_lab/fashion-mnist",
    "data/FashionMNIST/raw",
    "data/fashion-mnist",
)
FASHION_HELP = (
    "run `fedjax-lab data get fashion_mnist` or `apt install dataset-fashion-mnist`, or name the"
    " folder of the four files with --config.data.folder"
)
IDX_HELP = (
    "name the folder of the four MNIST-format files with --config.data.folder (`fedjax-lab data get"
    " mnist` fetches MNIST's, `fedjax-lab data get kmnist` those of Kuzushiji-MNIST)"
)
KINDS = {0x801: "labels", 0x803: "images"}  # by a file's first four bytes
FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


def fashion_mnist(*, folder: str = "") -> Dataset:
    """Fashion-MNIST (Xiao et al. 2017, arXiv:1708.07747): 60,000 + 10,000 images [28, 28, 1].

    `folder` is the one with the files or the one around its fashion-mnist; without it the usual
    places are searched. Raises BadInput as `idx` does.
    """
    places = fashion_places(folder)
    where = next((p for p in places if all(find(p, name) for name in FILES)), None)
    if where is None and not folder:
        looked = ", ".join(map(str, places))
        raise BadInput(f"Fashion-MNIST is in none of {looked}: {FASHION_HELP}")
    x, y, test = read(where or places[0], FASHION_HELP)
    if y.max() >= len(FASHION_CLASSES):
        raise BadInput(f"{where}: label {y.max()} is not of Fashion-MNIST: {FASHION_HELP}")
    return _dataset(x, y, test, FASHION_CLASSES, "fashion_mnist")


def fashion_places(folder: str) -> list[Path]:
    """The folders in which Fashion-MNIST may be."""
    places = (folder, f"{folder}/{FASHION_FOLDER}") if folder else FASHION_FOLDERS
    return [Path(place).expanduser() for place in places]


def idx(*, folder: str) -> Dataset:
    """MNIST, KMNIST, EMNIST and their like, from `folder`: images [R, H, W, 1], training first.

    The classes are "0", "1", ... to the highest label, ten at least. Raises BadInput for a file
    that is missing, damaged or not what its name says.
    """
    if not folder:
        raise BadInput(f"data.folder is empty: {IDX_HELP}")
    where = Path(folder).expanduser()
    x, y, test = read(where, IDX_HELP)
    classes = tuple(str(label) for label in range(max(10, int(y.max()) + 1)))
    return _dataset(x, y, test, classes, where.resolve().name)


def read(folder: Path, remedy: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images [R, H, W, 1] uint8, labels [R] int32 and the test mask [R] of the four files."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder: {remedy}")
    train, test = (_part(folder, FILES[i], FILES[i + 1], remedy) for i in (0, 2))
    if train[0].shape[1:] != test[0].shape[1:]:
        sizes = " and ".join(f"{x.shape[1]} x {x.shape[2]}" for x, _ in (train, test))
        raise BadInput(f"{folder}: training and test images differ in size, {sizes}: {remedy}")
    x, y = (np.concatenate(pair) for pair in zip(train, test, strict=True))
    return x[..., None], y.astype(np.int32), np.arange(len(y)) >= len(train[1])


def _part(folder: Path, images: str, labels: str, remedy: str) -> tuple[np.ndarray, np.ndarray]:
    """The images [R, H, W] and labels [R] of the training or the test files."""
    images_file, labels_file = (_existing(folder, name, remedy) for name in (images, labels))
    x, y = read_file(images_file, 3, remedy), read_file(labels_file, 1, remedy)
    if len(x) != len(y):
        counts = f"{images_file} holds {len(x)} images, {labels_file} {len(y)} labels"
        raise BadInput(f"{counts}: {remedy}")
    return x, y


def _existing(folder: Path, name: str, remedy: str) -> Path:
    path = find(folder, name)
    if path is None:
        raise BadInput(f"{folder / name} (or {name}.gz) is missing: {remedy}")
    return path


def find(folder: Path, name: str) -> Path | None:
    """The file of this name in the folder, plain or gzipped; None if there is neither."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def read_file(path: Path, dimensions: int, remedy: str) -> np.ndarray:
    """One idx file of unsigned bytes with this many dimensions, checked against its own header."""
    with safe.reading(path, remedy), _opened(path) as file:
        start = 4 * (1 + dimensions)
        head = file.read(start)
        shape = _shape(path, head, dimensions, remedy)
        due, stored = math.prod(shape), path.stat().st_size
        if due > safe.DEFLATE * stored:
            raise BadInput(f"{path} is truncated: {due} bytes cannot be in {stored}: {remedy}")
        safe.check_memory(due)
        content = file.read(due + 1)
    if len(content) < due:
        problem = f"truncated, {len(content)} bytes where {due} are due"
        raise BadInput(f"{path} is {problem}: {remedy}")
    if len(content) > due:
        raise BadInput(f"{path} is too long, more than the {due} bytes that are due: {remedy}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    """The file, open to be read, unzipped where it is gzipped."""
    file = safe.opened(path)
    return gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file


def _shape(path: Path, head: bytes, dimensions: int, remedy: str) -> list[int]:
    """The sizes in a file's header, none of them 0."""
    magic = int.from_bytes(head[:4], "big")
    if len(head) >= 4 and magic != 0x800 + dimensions:
        kind = KINDS.get(magic, f"something else (magic number {magic})")
        raise BadInput(f"{path} holds {kind}, not {KINDS[0x800 + dimensions]}: {remedy}")
    if len(head) < 4 * (1 + dimensions):
        raise BadInput(f"{path} is truncated, {len(head)} bytes: {remedy}")
    shape = np.frombuffer(head, ">u4", dimensions, offset=4).tolist()
    if min(shape) < 1:
        raise BadInput(f"{path} is empty, its header says {shape}: {remedy}")
    return shape


def _dataset(
    x: np.ndarray, y: np.ndarray, test: np.ndarray, classes: tuple[str, ...], name: str
) -> Dataset:
    """A data set of one domain."""
    return Dataset(
        x=x, y=y, domain=np.zeros(len(y), np.int32), test=test, classes=classes, domains=(name,)
    )
