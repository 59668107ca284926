"""Private state of clients in this machine's memory or in a file, instead of on a device.

The private state of all clients may be far larger than the memory of a device, but a round needs
only that of its cohort. Each client has one record of bytes, so that one copy per client reads a
cohort; each leaf [N, ...] of the result is a view of the records that were read.
"""

import errno
import hashlib
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.engine.host import kind_records
from fedjax_lab.tree import is_key
from fedjax_lab.types import PyTree

ALIGNMENT = 64  # bytes to which each leaf of a record is aligned
PIECE_BYTES = 1 << 22  # bytes of the records that are processed at a time


class HostState:
    """The private state of C clients, or of this process's part of them; initially all zeros.

    like: the shapes of the state of all clients, leaves [C, ...], as from `kind_records.numbered`.
    folder: where to create the file, which is deleted when the process ends; None: in memory.
    segment: the clients that this process stores; None: all.

    Raises OSError or MemoryError if there is not enough space. A pass over all clients holds at
    most `PIECE_BYTES` of a file in memory. Several threads may read at the same time, but not while
    one writes.
    """

    def __init__(
        self,
        like: PyTree,
        num_clients: int,
        folder: Path | None = None,
        segment: range | None = None,
    ):
        self._like = jax.tree.map(_bits_of, like)
        leaves, self._tree = jax.tree.flatten(kind_records.stored_shapes(self._like))
        self._shapes = [(a.shape[1:], np.dtype(a.dtype)) for a in leaves]
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in self._shapes]
        self._sizes = sizes
        self._ends = [0, *np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]).tolist()]
        self.num_clients = num_clients
        self.segment = range(num_clients) if segment is None else segment
        make = _Memory if folder is None else _File
        self._records = make(len(self.segment), self._ends[-1], folder)

    @property
    def bytes_of_one(self) -> int:
        """The size of one client's record in bytes."""
        return self._ends[-1]

    @property
    def nbytes(self) -> int:
        """The size of all clients' records in bytes, including zeros that take no space."""
        return self.num_clients * self.bytes_of_one

    def read(self, ids: np.ndarray) -> PyTree:
        """Returns the entries of clients `ids` [N], ascending, as NumPy leaves [N, ...]."""
        return self._leaves(self._read(ids), ids)

    def everything(self) -> PyTree:
        """The entries of all clients stored here, as views that change with later writes."""
        return self._leaves(self._records.all(), np.array(self.segment))

    def save(self, file: BinaryIO) -> str:
        """Writes all records to an empty file, with holes for zeros; returns their SHA-256."""
        digest, first = hashlib.sha256(), self.segment.start
        done = first
        for ids in self.pieces():
            records = self._read(ids[ids >= done])
            digest.update(records)
            if records.any():
                file.seek((done - first) * self.bytes_of_one)
                file.write(records)
            done = int(ids[-1]) + 1
        file.truncate((done - first) * self.bytes_of_one)
        return digest.hexdigest()

    def load(self, file: BufferedReader, saved: range) -> None:
        """Reads the clients stored here from a file that `save` has written for clients `saved`."""
        for ids in self.pieces():
            ids = ids[(ids >= saved.start) & (ids < saved.stop)]
            if not len(ids):
                continue
            records = np.empty((len(ids), self.bytes_of_one), np.uint8)
            file.seek((int(ids[0]) - saved.start) * self.bytes_of_one)
            if file.readinto(records.data) != records.nbytes:
                raise ValueError("it is too short")
            if not np.array_equal(records, self._read(ids)):  # zeros stay holes
                self._records.write(ids - self.segment.start, records)

    @property
    def layout(self) -> dict:
        """A description of the records; two stores with equal layouts can exchange records."""
        leaves = [[list(shape), str(dtype)] for shape, dtype in self._shapes]
        return {"clients": self.num_clients, "alignment": ALIGNMENT, "leaves": leaves}

    def _leaves(self, records, ids):
        parts = zip(self._ends, self._sizes, self._shapes, strict=False)
        leaves = [
            records[:, begin : begin + size].view(dtype).reshape(len(records), *shape)
            for begin, size, (shape, dtype) in parts
        ]
        return kind_records.unpacked(jax.tree.unflatten(self._tree, leaves), self._like, ids)

    def write(self, ids: np.ndarray, entries: PyTree) -> None:
        """Replaces the entries of clients `ids` [N], ascending and distinct."""
        self._write(ids, kind_records.packed(entries, self._like, ids))

    def _write(self, ids, entries):
        records = np.zeros((len(ids), self.bytes_of_one), np.uint8)
        leaves = jax.tree.leaves(entries)
        for begin, leaf in zip(self._ends, leaves, strict=False):
            flat = np.ascontiguousarray(leaf).reshape(len(ids), -1).view(np.uint8)
            records[:, begin : begin + flat.shape[1]] = flat
        self._records.write(ids - self.segment.start, records)

    def fill(self, entries: Callable[[np.ndarray], PyTree]) -> None:
        """Sets the entries of all clients stored here, in pieces; pieces of zeros are skipped.

        entries: (ids [N], ascending, of the same length in every call) -> leaves [N, ...].
        """
        for ids in self.pieces():
            new = kind_records.packed(jax.device_get(entries(ids)), self._like, ids)
            if any(leaf.any() for leaf in jax.tree.leaves(new)):
                self._write(ids, new)

    def pieces(self) -> list[np.ndarray]:
        """The clients stored here in pieces of equal length; the last two may overlap."""
        count, first = len(self.segment), self.segment.start
        length = min(count, max(1, PIECE_BYTES // max(1, self.bytes_of_one)))
        starts = [min(start, count - length) for start in range(0, count, length)]
        return [first + np.arange(start, start + length) for start in starts]

    def _read(self, ids):
        return self._records.read(ids - self.segment.start)


def _bits_of(like):
    """The shape of the bits of an array, of which only the shape is known; NumPy arrays stay."""
    return like if isinstance(like, np.ndarray) else jax.eval_shape(to_bits, like)


def to_bits(entries: PyTree) -> PyTree:
    """Entries as they are stored: typed keys, which NumPy lacks, become integers."""
    return jax.tree.map(lambda a: jax.random.key_data(a) if is_key(a) else a, entries)


def from_bits(bits: PyTree, like: PyTree) -> PyTree:
    """The inverse of `to_bits`, for entries of the types in `like`."""

    def one(bits, like):
        if not is_key(like):
            return bits
        impl = jax.random.key_impl(jnp.empty(0, like.dtype))  # `like` may be a shape
        return jax.random.wrap_key_data(bits, impl=impl)

    return jax.tree.map(one, bits, like)


class _Memory:
    """Records [C, size] in memory. Pages that were never written take no memory."""

    def __init__(self, count, size, _):
        if count * size > safe.free_memory():
            raise MemoryError(_too_large(count * size, safe.free_memory(), "memory"))
        pages = mmap.mmap(-1, max(1, count * size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # otherwise one client could take a page of 2 MiB
            pages.madvise(mmap.MADV_NOHUGEPAGE)
        self._all = np.frombuffer(pages, np.uint8, count * size).reshape(count, size)

    def all(self):
        return self._all

    def read(self, ids):
        return self._all.take(ids, axis=0)

    def write(self, ids, records):
        self._all[ids] = records


class _File:
    """Records [C, size] in an unnamed file. Blocks that were never written take no space.

    The file is read and written by system calls. If it were mapped into memory instead, every
    touched page would count as memory of the process, and a full disk would kill the process.
    """

    def __init__(self, count, size, folder):
        free = shutil.disk_usage(folder).free
        if count * size > free:
            raise OSError(errno.ENOSPC, _too_large(count * size, free, "the disk"), str(folder))
        self._count, self._size = count, size
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)
        self._file.truncate(count * size)

    def all(self):
        if not self._size:  # an empty file cannot be mapped
            return np.zeros((self._count, 0), np.uint8)
        return np.memmap(self._file, np.uint8, "r", shape=(self._count, self._size))

    def read(self, ids):
        records = np.empty((len(ids), self._size), np.uint8)
        for run, at in self._runs(ids, records):
            content = os.pread(self._file.fileno(), run.nbytes, at)
            if len(content) != run.nbytes:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            run[...] = np.frombuffer(content, np.uint8).reshape(run.shape)
        return records

    def write(self, ids, records):
        for run, at in self._runs(ids, records):
            while run.nbytes:
                written = os.pwrite(self._file.fileno(), run, at)
                run, at = run.reshape(-1)[written:], at + written

    def _runs(self, ids, records):
        """The runs of records that are adjacent in the file, and the offset of each run."""
        starts = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
        for begin, end in pairwise([*starts.tolist(), len(ids)]):
            yield records[begin:end], int(ids[begin]) * self._size


def _too_large(size, free, where):
    return (
        f"the clients' private state needs {size / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB"
        f" of {where} are free"
    )
