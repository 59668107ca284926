"""Writes the folders that `records` reads: shard after shard, each named once it is whole."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.cache import checksum
from fedjax_lab.data.dataset import TYPES, Dataset
from fedjax_lab.data.lazy import example_bytes, pieces
from fedjax_lab.data.records import (
    FORMAT,
    INDEX,
    LABELS,
    SUMS,
    Index,
    array_record,
    named_errors,
    of_each,
    read_index,
    shard_name,
    sum_of,
)
from fedjax_lab.errors import BadInput

SHARD = 2**28  # bytes of a shard, at least
MOST_SHARDS = 500  # open at once by who reads at random; many systems allow 1,024 files
OPTIONS = "group_size:1,uncompressed"  # each example can be read alone
REMEDY = "name another folder with --out"


class Progress(NamedTuple):
    """How much of a folder is there."""

    examples: int
    shards: int


def write(dataset: Dataset, folder: Path, source: str) -> Iterator[Progress]:
    """Writes a dataset to a folder, tells after each piece how far it is; x is read piece by piece.

    Shards that an earlier call has written stay, unless they are damaged. The folder is the same,
    byte for byte, however often a call was cut short.

    Args:
      dataset: x may be lazy.
      folder: it has no other owner.
      source: the config.data.name of the dataset.

    Raises:
      BadInput: the folder holds anything else, or x is of a type that records cannot have.
    """
    index = make_index(dataset, source)
    check_folder(folder, index)
    with named_when_whole(folder / INDEX) as file:
        file.write_text(json.dumps(_content(index), indent=2) + "\n")
    with named_when_whole(folder / LABELS) as file, file.open("wb") as content:
        kinds = of_each(index)
        labels: Any = {key: np.asarray(getattr(dataset, key), kind) for key, kind in kinds.items()}
        np.savez(content, **labels)
    before = (folder / SUMS).read_text(errors="replace") if (folder / SUMS).exists() else ""
    sums, begin = [sum_of(folder / INDEX), sum_of(folder / LABELS)], 0
    for number, size in enumerate(index.shards):
        file = folder / shard_name(number)
        if not is_whole(file, size, before):
            for done in write_shard(dataset.x, range(begin, begin + size), file):
                yield Progress(done, number)
        sums.append(sum_of(file))
        begin += size
        yield Progress(begin, number + 1)
    with named_when_whole(folder / SUMS) as file:
        file.write_text("".join(sums))


def make_index(dataset: Dataset, source: str) -> Index:
    """The index of a dataset's folder."""
    x = dataset.x
    if x.dtype not in map(np.dtype, TYPES) or 0 in x.shape:
        what = f"{x.dtype} {list(x.shape)}"
        raise BadInput(f"the examples are {what}; records hold {', '.join(TYPES)}, at least one")
    size = max(1, SHARD // example_bytes(x), -(-len(x) // MOST_SHARDS))
    arrays = {key: np.asarray(getattr(dataset, key)) for key in of_each(dataset)}
    kinds = ("classes", "domains", "users") if dataset.users else ("classes", "domains")
    names = {key: np.array(getattr(dataset, key)) for key in kinds}
    return Index(
        format=FORMAT,
        source=source,
        content=checksum({"x": x, **arrays, **names}),
        shape=x.shape,
        dtype=x.dtype.name,
        shards=tuple(min(size, len(x) - begin) for begin in range(0, len(x), size)),
        classes=dataset.classes,
        domains=dataset.domains,
        users=dataset.users,
        origin=dataset.origin is not None,
    )


def _content(index):
    """What the file of an index says; without users and origins as before there were any."""
    left_out = {key for key in ("users", "origin") if not getattr(index, key)}
    return {key: value for key, value in index._asdict().items() if key not in left_out}


def check_folder(folder: Path, index: Index) -> None:
    """BadInput where the folder holds anything else than a part of what has this index."""
    there = [file for file in folder.iterdir() if file.name[:1] != "." and file.suffix != ".tmp"]
    if not there:
        return
    if not (folder / INDEX).exists():
        raise BadInput(f"{folder} is not empty and has no {INDEX}: {REMEDY}")
    with safe.reading(folder, REMEDY):
        saved = read_index(folder)
    for key, here in index._asdict().items():
        if getattr(saved, key) != here:
            raise BadInput(f"{folder} holds other data: {key} in {INDEX} differs; {REMEDY}")


def is_whole(file: Path, size: int, sums: str) -> bool:
    """Whether a file is a shard as it was written, with so many examples.

    sums: the content of SHA256SUMS; without it each example is read, whose record has a checksum.
    """
    if not file.exists():
        return False
    if sums:
        return sum_of(file) in sums
    module = array_record("array_record_module")
    try:
        with contextlib.closing(module.ArrayRecordReader(str(file))) as shard, named_errors(file):
            return shard.num_records() == size and all(shard.read() for _ in range(size))
    except RuntimeError:
        return False


def write_shard(x, rows: range, file: Path) -> Iterator[int]:
    """Writes these examples to a file; tells after each piece how many of x are written."""
    module = array_record("array_record_module")
    with named_when_whole(file) as scratch, named_errors(file):
        with contextlib.closing(module.ArrayRecordWriter(str(scratch), OPTIONS)) as shard:
            for piece in pieces(x, rows):
                for example in x[piece]:
                    shard.write(example.tobytes())
                yield piece.stop


@contextlib.contextmanager
def named_when_whole(file: Path) -> Iterator[Path]:
    """Where to write a file that gets its name once all of it is on the disk."""
    scratch = file.with_name(f"{file.name}.tmp")
    try:
        yield scratch
        with scratch.open("rb+") as content:
            os.fsync(content.fileno())
        os.replace(scratch, file)
    except BaseException:  # a kill leaves it there; the next call writes it anew
        scratch.unlink(missing_ok=True)
        raise
