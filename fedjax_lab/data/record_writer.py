"""Writes the folders that `records` reads; each shard gets its name when it is complete."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.cache import checksum
from fedjax_lab.data.dataset import TYPES, Dataset
from fedjax_lab.data.lazy import example_bytes, pieces
from fedjax_lab.data.sources.records import (
    FORMAT,
    INDEX,
    LABELS,
    SUMS,
    Index,
    array_record,
    label_arrays,
    named_errors,
    read_index,
    shard_name,
    sum_of,
)
from fedjax_lab.data.writing import replacing
from fedjax_lab.errors import BadInput

SHARD = 2**28  # approximate size of a shard in bytes; larger if there were too many shards
MOST_SHARDS = 500  # a reader keeps all of them open; many systems allow 1,024 open files
OPTIONS = "group_size:1,uncompressed"  # so that single examples can be read
REMEDY = "name another folder with --out"


class Progress(NamedTuple):
    """The numbers of examples and of complete shards that have been written."""

    examples: int
    shards: int


def write(dataset: Dataset, folder: Path, source: str) -> Iterator[Progress]:
    """Writes a dataset to a folder, piece by piece, and yields the progress after each piece.

    Intact shards of an earlier call are kept. The resulting folder is the same, byte for byte,
    however often earlier calls were interrupted.

    Args:
      dataset: the dataset; x may be lazy.
      folder: the folder, which no other process may use at the same time.
      source: the config.data.name of the dataset.

    Raises:
      BadInput: the folder holds anything else, or records cannot hold the dtype of x.
    """
    index = make_index(dataset, source)
    check_folder(folder, index)
    with named_when_whole(folder / INDEX) as file:
        file.write_text(json.dumps(_content(index), indent=2) + "\n")
    with named_when_whole(folder / LABELS) as file, file.open("wb") as content:
        kinds = label_arrays(index)
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
    if not dataset.has_classes:
        raise BadInput(
            "records hold examples with one class each, and these have other labels; use"
            " data.name=mapped, which also reads examples on demand"
        )
    if x.dtype not in map(np.dtype, TYPES) or 0 in x.shape:
        what = f"{x.dtype} {list(x.shape)}"
        raise BadInput(f"the examples are {what}, but must be non-empty and {', '.join(TYPES)}")
    size = max(1, SHARD // example_bytes(x), -(-len(x) // MOST_SHARDS))
    arrays = {key: np.asarray(getattr(dataset, key)) for key in label_arrays(dataset)}
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
        overlap=dataset.overlap,
    )


def _content(index):
    """The content of index.json; users, origin and overlap are left out if there are none."""
    left_out = {key for key in ("users", "origin", "overlap") if not getattr(index, key)}
    return {key: value for key, value in index._asdict().items() if key not in left_out}


def check_folder(folder: Path, index: Index) -> None:
    """Raises BadInput unless the folder is empty or holds a (partial) dataset with this index."""
    files = [file for file in folder.iterdir() if file.name[:1] != "." and file.suffix != ".tmp"]
    if not files:
        return
    if not (folder / INDEX).exists():
        raise BadInput(f"{folder} is not empty and has no {INDEX}: {REMEDY}")
    with safe.reading(folder, REMEDY):
        saved = read_index(folder)
    for key, here in index._asdict().items():
        if getattr(saved, key) != here:
            raise BadInput(f"{folder} holds another data set: {key} in {INDEX} differs; {REMEDY}")


def is_whole(file: Path, size: int, sums: str) -> bool:
    """Whether a file is an intact shard with `size` examples.

    sums: the content of SHA256SUMS; if it is empty, every example is read, and array_record
        verifies the checksum of each record.
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
    """Writes these examples to a file; yields after each piece how many of x are written."""
    module = array_record("array_record_module")
    with named_when_whole(file) as scratch, named_errors(file):
        with contextlib.closing(module.ArrayRecordWriter(str(scratch), OPTIONS)) as shard:
            for piece in pieces(x, rows):
                for example in x[piece]:
                    shard.write(example.tobytes())
                yield piece.stop


def named_when_whole(file: Path) -> contextlib.AbstractContextManager[Path]:
    """As `writing.replacing`; after a kill the next call overwrites the temporary file."""
    return replacing(file, file.with_name(f"{file.name}.tmp"))
