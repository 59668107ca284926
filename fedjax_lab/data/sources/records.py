"""Examples in ArrayRecord files, read on demand. Needs the extra `stream`.

A folder written by `python -m fedjax_lab.data prepare` holds

    index.json                 shape and type of the examples, sizes of the shards, class names
    labels.npz                 y, domain and test of each example, and client if there are users
    shard-00000.array_record   one record per example: its numbers in C order
    ..
    SHA256SUMS                 checksums of all these files, written last, for `sha256sum --check`
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import TYPES, Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats import npz
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.data.places import folder_of, path_of
from fedjax_lab.errors import MACHINE, missing

FORMAT = 1  # version of the folder format
INDEX, LABELS, SUMS = "index.json", "labels.npz", "SHA256SUMS"
EACH = {"y": np.int32, "domain": np.int32, "test": bool}  # arrays in labels.npz and their types
REMEDY = "write it with `python -m fedjax_lab.data prepare`, which also repairs a damaged folder"


class Index(NamedTuple):
    """The content of index.json."""

    format: int
    source: str  # the config.data.name that the examples were read from
    content: str  # a digest of the whole dataset
    shape: tuple[int, ...]  # of all examples, [R, ...]
    dtype: str
    shards: tuple[int, ...]  # number of examples in each shard
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    users: tuple[str, ...] = ()  # natural users; not in the file if there are none
    origin: bool = False  # whether labels.npz has Dataset.origin; in the file only if it is True
    overlap: int = 0  # Dataset.overlap; in the file only if it is not 0


@source(REMEDY)
def records(*, path: str) -> Dataset:
    """The examples of a folder written by `python -m fedjax_lab.data prepare`; x is lazy.

    path: the folder.

    Raises BadInput if anything is missing or damaged: at once for missing or truncated shards, and
    otherwise when the damaged part is read.
    """
    folder = folder_of(path_of(path, "name a folder of records with --config.data.path"))
    with safe.reading(folder):
        sums = read_sums(folder)
        index = read_index(folder)
        labels: Any = npz.read(folder / LABELS, label_arrays(index), problem="is damaged")
        check_labels(index, labels)
    digest = hashlib.sha256("".join(sums).encode()).hexdigest()
    x = LazyArray(reader(folder, index), index.shape, index.dtype, digest)
    names = {key: getattr(index, key) for key in ("classes", "domains", "users")}
    return Dataset(x=x, **labels, **names, overlap=index.overlap)


def label_arrays(there: Dataset | Index) -> dict[str, Any]:
    """The arrays in labels.npz, with their types."""
    has_origin = there.origin if isinstance(there, Index) else there.origin is not None
    kinds = {**EACH, "client": np.int32} if there.users else EACH
    return {**kinds, "origin": np.int32} if has_origin else kinds


def shard_name(number: int) -> str:
    """The name of a shard's file."""
    return f"shard-{number:05}.array_record"


def read_index(folder: Path) -> Index:
    """The index of a folder; raises any exception if it is missing or invalid."""
    content = json.loads(safe.content(folder / INDEX))
    fields: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
    index = Index(**fields)
    numbers = (*index.shape, *index.shards)
    if index.format != FORMAT or index.dtype not in TYPES:
        raise ValueError(f"{INDEX} is of format {index.format} and type {index.dtype}")
    if min(numbers) < 1 or len(index.shape) < 2 or sum(index.shards) != index.shape[0]:
        raise ValueError(f"the numbers in {INDEX} do not fit together")
    return index


def read_sums(folder: Path) -> list[str]:
    """The lines of SHA256SUMS; the checksums of the index and the labels are verified.

    Raises ValueError if the folder is incomplete or one of these two files differs. Shards are not
    read.
    """
    if not (folder / SUMS).exists():
        raise ValueError(f"it has no {SUMS}, so it is incomplete")
    sums = safe.content(folder / SUMS).decode().splitlines(keepends=True)
    for name in (INDEX, LABELS):
        if sum_of(folder / name) not in sums:
            raise ValueError(f"{name} does not match its checksum in {SUMS}")
    return sums


def sum_of(file: Path) -> str:
    """The line of a file in SHA256SUMS."""
    safe.check_regular(file)
    with file.open("rb") as content:
        return f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {file.name}\n"


def check_labels(index: Index, labels: dict[str, np.ndarray]) -> None:
    """Raises ValueError unless the arrays of labels.npz match the index."""
    for name, array in labels.items():
        if array.shape != index.shape[:1] or array.dtype != label_arrays(index)[name]:
            raise ValueError(f"{name} in {LABELS} does not match {INDEX}")
    numbers = {"y": index.classes, "domain": index.domains, "client": index.users}
    for name in numbers.keys() & labels.keys():
        names = numbers[name]
        if not 0 <= labels[name].min() <= labels[name].max() < len(names):
            raise ValueError(f"{name} in {LABELS} has a number without a name in {INDEX}")


def reader(folder: Path, index: Index) -> Callable[[np.ndarray], np.ndarray]:
    """A function from numbers of examples [n] to these examples.

    Raises BadInput if a shard is missing or truncated.
    """
    files = [folder / shard_name(number) for number in range(len(index.shards))]
    readers = [opened(file, size) for file, size in zip(files, index.shards, strict=True)]
    ends = np.cumsum(index.shards)
    begins = ends - index.shards

    def read(numbers):
        made = np.empty((len(numbers), *index.shape[1:]), index.dtype)
        shard = np.searchsorted(ends, numbers, side="right")
        for each in np.unique(shard).tolist():
            at = np.flatnonzero(shard == each)
            places = (numbers[at] - begins[each]).tolist()
            with safe.reading(files[each], problem="is damaged"), named_errors(files[each]):
                content = b"".join(readers[each].read(places))
                made[at] = np.frombuffer(content, index.dtype).reshape(-1, *index.shape[1:])
        return made

    return read


def opened(file: Path, size: int) -> Any:
    """A thread-safe reader of a shard. Raises BadInput unless the shard has `size` examples."""
    module = array_record("array_record_module")
    with safe.reading(file), named_errors(file):
        safe.check_regular(file)
        shard = module.ArrayRecordReader(
            str(file), "readahead_buffer_size:0", file_reader_buffer_size=2**15
        )
        if shard.num_records() != size:
            raise ValueError(f"it holds {shard.num_records()} of {size} examples")
    return shard


def array_record(module: str) -> ModuleType:
    """Imports a module of the package array_record. Raises BadInput if it is not installed."""
    import importlib

    try:
        return importlib.import_module(f"array_record.python.{module}")
    except ImportError as error:
        raise missing(error, "stream") from error


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Inside the context, array_record's errors about the machine become OSErrors."""
    try:
        yield
    except RuntimeError as error:
        for number in MACHINE:
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), str(path)) from error
        raise
