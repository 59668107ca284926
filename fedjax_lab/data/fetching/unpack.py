"""Unpacks .zip and .tar.gz: only regular files within the folder, and of limited total size."""

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, NamedTuple

from fedjax_lab.data import safe

LARGEST = 10  # highest compression ratio: images are hardly compressed
MOST = 2_000_000  # highest number of members
BLOCK = 2**20  # bytes


class Member(NamedTuple):
    """An unpacked file."""

    path: PurePosixPath
    size: int
    crc: int


class Entry(NamedTuple):
    """Anything but a folder in an archive, as the archive declares it."""

    path: str
    size: int
    is_file: bool
    crc: int | None  # None: unknown
    open: Callable[[], Any]


def unpack(
    archive: Path, folder: Path, remedy: str, written: Callable[[int], object]
) -> list[Member]:
    """Unpacks all files of an archive; intact files of an earlier call are kept.

    Args:
      archive: a gzipped tar file if its name ends in .tar.gz, otherwise a zip file.
      folder: the destination.
      remedy: what to do about an invalid archive, for messages.
      written: called with the size of each unpacked file in bytes.

    Raises:
      BadInput: the archive is damaged, or has links, paths outside the folder, or more than LARGEST
        times its own bytes. Nothing is written then, except files before a damaged one.
    """
    entries = _tar_entries if archive.name.endswith(".tar.gz") else _zip_entries
    with safe.reading(archive, remedy), safe.opened(archive) as file:
        check(entries(file), archive.stat().st_size)  # before the first file is written
        file.seek(0)
        return [_unpacked(entry, folder, written) for entry in entries(file)]


def _zip_entries(file: BinaryIO) -> Iterator[Entry]:
    with zipfile.ZipFile(file) as content:
        for info in content.infolist():
            is_file = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
            if not info.is_dir():
                start = partial(content.open, info)
                yield Entry(info.filename, info.file_size, is_file, info.CRC, start)


def _tar_entries(file: BinaryIO) -> Iterator[Entry]:
    with tarfile.open(fileobj=file, mode="r:gz") as content:
        for info in content:
            if not info.isdir():
                start = partial(content.extractfile, info)
                yield Entry(info.name, info.size, info.isreg(), None, start)


def check(entries: Iterable[Entry], stored: int) -> None:
    """Raises ValueError if entries must not be unpacked from an archive of `stored` bytes."""
    total = 0
    for count, entry in enumerate(entries, 1):
        total += entry.size
        if total > LARGEST * stored or count > MOST:
            raise ValueError(f"it would unpack to {total} bytes in {count} files")
        path, name = PurePosixPath(entry.path), entry.path
        odd = "\\" in name or ":" in name or not name.isprintable()
        if path.is_absolute() or ".." in path.parts or not path.parts or odd:
            raise ValueError(f"{name[:80]!r} is not a path within the folder")
        if not entry.is_file:
            raise ValueError(f"{name[:80]!r} is a link or a device")


def _unpacked(entry: Entry, folder: Path, written: Callable[[int], object]) -> Member:
    """Writes a file, unless it is there and its checksum is known."""
    target, value = folder / entry.path, entry.crc
    is_there = target.is_file() and target.stat().st_size == entry.size
    if value is None or not (is_there and crc(target) == value):
        with entry.open() as content:
            value = _write(content, target)
    written(entry.size)
    return Member(PurePosixPath(entry.path), entry.size, value)


def _write(member: IO[bytes], target: Path) -> int:
    """Writes a file; returns its CRC-32."""
    value = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        for block in blocks(member):
            value = zlib.crc32(block, value)
            out.write(block)
    return value


def blocks(content: IO[bytes]) -> Iterator[bytes]:
    """The bytes of a file in blocks."""
    while block := content.read(BLOCK):
        yield block


def crc(path: Path) -> int:
    """The CRC-32 of a file."""
    value = 0
    with path.open("rb") as content:
        for block in blocks(content):
            value = zlib.crc32(block, value)
    return value
