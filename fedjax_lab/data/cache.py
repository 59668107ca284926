"""A cache of arrays that are slow to compute: .npz files, recomputed if they are damaged."""

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.data import safe, writing
from fedjax_lab.data.lazy import LazyArray, pieces


def cache_folder(folder: str = "") -> Path:
    """`folder` if it is not empty, else $FEDJAX_LAB_CACHE, else ~/.cache/fedjax_lab."""
    return Path(folder or os.environ.get("FEDJAX_LAB_CACHE") or "~/.cache/fedjax_lab").expanduser()


def load(path: Path) -> dict[str, Any] | None:
    """The arrays in a cache file, or None if it does not exist or, with a warning, is damaged."""
    try:
        with safe.opened(path) as content, np.load(content, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files if key != "sha256"}
            if str(file["sha256"]) != checksum(arrays):
                raise ValueError("the checksum does not match")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # any problem with a cache file is solved by computing it again
        logging.getLogger(__name__).warning("%s is damaged; computing it again: %s", path, error)
        return None
    return arrays


def save(path: Path, arrays: dict[str, Any]) -> None:
    """Writes a cache file atomically; logs a warning if that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing.replacing(path) as scratch, scratch.open("wb") as file:
            np.savez(file, **arrays, sha256=np.array(checksum(arrays)))
    except OSError as error:
        logging.getLogger(__name__).warning("could not write the cache file %s: %s", path, error)


def checksum(arrays: dict[str, Any]) -> str:
    """SHA-256 of the names, types, shapes and contents of the arrays, in hexadecimal digits.

    For a lazy array, its digest stands for its content; without a digest it is read piece by piece.
    """
    digest = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        digest.update(f"{key} {array.dtype.str} {array.shape} ".encode())
        for part in _content(array):
            digest.update(part)
    return digest.hexdigest()


def _content(array) -> Iterator[Any]:  # of buffers, which have a type from Python 3.12 on
    if not isinstance(array, LazyArray):
        yield np.ascontiguousarray(array)
    elif array.digest is not None:
        yield array.digest.encode()
    else:
        yield from (array[rows] for rows in pieces(array))
