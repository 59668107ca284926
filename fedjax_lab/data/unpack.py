"""Unpacks zip archives: plain files, none outside of the folder, a bounded number of bytes."""

import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from fedjax_lab.data import safe

LARGEST = 10  # bytes unpacked for each one of the archive: images hardly shrink
MOST = 2_000_000  # members
BLOCK = 2**20  # bytes


class Member(NamedTuple):
    """A file as it was unpacked."""

    path: PurePosixPath
    size: int
    crc: int


def unpack(
    archive: Path, folder: Path, remedy: str, written: Callable[[int], object]
) -> list[Member]:
    """Unpacks all files of an archive; those that are there as they should be stay.

    Args:
      archive: a zip file.
      folder: where to.
      remedy: what to do about a bad archive.
      written: called with the number of bytes of each file.

    Raises:
      BadInput: the archive is damaged, or holds links, paths that lead out of the folder, or more
        than LARGEST times its own bytes. Nothing has been written then, except before damage.
    """
    with safe.reading(archive, remedy), safe.opened(archive) as file:
        with zipfile.ZipFile(file) as content:
            infos = content.infolist()
            check(infos, archive.stat().st_size)
            return [_member(content, info, folder, written) for info in infos if not info.is_dir()]


def check(infos: list[zipfile.ZipInfo], stored: int) -> None:
    """ValueError for members that must not be unpacked."""
    claimed = sum(info.file_size for info in infos)
    if claimed > LARGEST * stored or len(infos) > MOST:
        raise ValueError(f"it would unpack to {claimed} bytes in {len(infos)} files")
    for info in infos:
        path, kind = PurePosixPath(info.filename), stat.S_IFMT(info.external_attr >> 16)
        odd = "\\" in info.filename or ":" in info.filename or not info.filename.isprintable()
        if path.is_absolute() or ".." in path.parts or not path.parts or odd:
            raise ValueError(f"{info.filename[:80]!r} is no path in the folder")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ValueError(f"{info.filename[:80]!r} is a link or a device")


def _member(content, info, folder, written):
    path = PurePosixPath(info.filename)
    target = folder / path
    if not _is_there(target, info):
        target.parent.mkdir(parents=True, exist_ok=True)
        with content.open(info) as member, target.open("wb") as out:
            for block in blocks(member):
                out.write(block)
    written(info.file_size)
    return Member(path, info.file_size, info.CRC)


def _is_there(target: Path, info: zipfile.ZipInfo) -> bool:
    """Whether an earlier call has unpacked the file."""
    if not target.is_file() or target.stat().st_size != info.file_size:
        return False
    return crc(target) == info.CRC


def blocks(content: IO[bytes]) -> Iterator[bytes]:
    """The bytes of a file, piece by piece."""
    while block := content.read(BLOCK):
        yield block


def crc(path: Path) -> int:
    """The CRC-32 of a file, as archives have it."""
    value = 0
    with path.open("rb") as content:
        for block in blocks(content):
            value = zlib.crc32(block, value)
    return value
