"""Embeddings that somebody has made before, in one .npz file."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.embedding import Embeddings
from fedjax_lab.errors import BadInput

HELP = (
    "config.embedding.file takes what numpy.savez has written: `examples`, one row for each example"
    " of the dataset, or for each training example, and `labels`, one row for each class"
)
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


def precomputed(dataset: Dataset, *, file: str) -> Embeddings:
    """`examples` [R, E], or [number of training examples, E] in their order, and `labels` [K, E].

    Any finite numbers; they become float32. Raises BadInput for a file that is missing, damaged or
    of another dataset.
    """
    path = Path(file).expanduser()
    if not file or not zipfile.is_zipfile(path):
        raise BadInput(f"{file or 'an empty name'} is not an .npz file: {HELP}")
    examples, labels = (read(path, key) for key in ("examples", "labels"))
    train = ~dataset.test
    if len(examples) not in (len(train), train.sum()):
        raise BadInput(
            f"{path}: examples has {len(examples)} rows, the dataset {len(train)} examples,"
            f" {train.sum()} of them to train on: {HELP}"
        )
    if labels.shape != (len(dataset.classes), examples.shape[1]):
        due = [len(dataset.classes), examples.shape[1]]
        raise BadInput(f"{path}: labels has shape {list(labels.shape)}, not {due}: {HELP}")
    full = np.zeros((len(train), examples.shape[1]), np.float32)
    full[train] = examples[train] if len(examples) == len(train) else examples
    return Embeddings(full, labels)


def read(path: Path, key: str) -> np.ndarray:
    """A table [., E] of finite float32 of the file."""
    try:
        with np.load(path, allow_pickle=False) as members:
            table = members.get(key)
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:100]
        raise BadInput(f"{path}: {key} cannot be read ({reason}): {HELP}") from error
    if table is None:
        raise BadInput(f"{path} has no array {key!r}: {HELP}")
    if not isinstance(table, np.ndarray) or table.dtype.kind not in "buif":
        raise BadInput(f"{path}: {key} is no array of numbers: {HELP}")
    if table.ndim != 2 or 0 in table.shape:
        raise BadInput(f"{path}: {key} has shape {list(table.shape)}, not [rows, size]: {HELP}")
    with np.errstate(over="ignore"):
        table = table.astype(np.float32)
    bad = ~np.isfinite(table).all(1)
    if bad.any():
        raise BadInput(
            f"{path}: {key} has NaN or infinite values, first in row {bad.argmax()}: {HELP}"
        )
    return table
