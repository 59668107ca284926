"""Precomputed embeddings, read from one .npz file."""

from pathlib import Path

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats import npz
from fedjax_lab.errors import BadInput
from fedjax_lab.models.embeddings import Embeddings

KEYS = ("examples", "labels")
HELP = (
    "config.embedding.file takes a file written by numpy.savez, with `examples`, one row for each"
    " example of the dataset or for each training example, and `labels`, one row for each class"
)


def precomputed(dataset: Dataset, *, file: str) -> Embeddings:
    """Embeddings `examples` [R, E], or [number of training examples, E], and `labels` [K, E].

    Rows of `examples` are in the order of the dataset. Any finite numbers are accepted and become
    float32.

    file: the .npz file with the arrays `examples` and `labels`.

    Raises BadInput if the file is missing, damaged or does not fit the dataset.
    """
    path = Path(file).expanduser()
    if not file:
        raise BadInput(f"config.embedding.file is empty: {HELP}")
    with safe.reading(path, HELP, "is not an .npz file, or is damaged"):
        names = npz.names(path)
    for key in KEYS:
        if key not in names:
            raise BadInput(f"{path} has no array {key!r}: {HELP}")
    arrays = npz.read(path, KEYS, HELP)
    examples, labels = (table(path, key, arrays[key]) for key in KEYS)
    train = ~dataset.test
    if len(examples) not in (len(train), train.sum()):
        raise BadInput(
            f"{path}: examples has {len(examples)} rows, but the dataset has {len(train)} examples,"
            f" {train.sum()} of them for training: {HELP}"
        )
    if labels.shape != (len(dataset.classes), examples.shape[1]):
        due = [len(dataset.classes), examples.shape[1]]
        raise BadInput(f"{path}: labels has shape {list(labels.shape)}, not {due}: {HELP}")
    full = np.zeros((len(train), examples.shape[1]), np.float32)
    full[train] = examples[train] if len(examples) == len(train) else examples
    return Embeddings(full, labels)


def table(path: Path, key: str, array: np.ndarray) -> np.ndarray:
    """The array of this name as a matrix [., E] of finite float32."""
    if array.dtype.kind not in "buif":
        raise BadInput(f"{path}: {key} is not an array of numbers: {HELP}")
    if array.ndim != 2 or 0 in array.shape:
        raise BadInput(f"{path}: {key} has shape {list(array.shape)}, not [rows, size]: {HELP}")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    bad = ~np.isfinite(array).all(1)
    if bad.any():
        raise BadInput(
            f"{path}: {key} has NaN or infinite values, first in row {bad.argmax()}: {HELP}"
        )
    return array
