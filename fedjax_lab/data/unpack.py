"""Unpacks .zip and .tar.gz: plain files, none outside of the folder, a bounded number of bytes."""

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, NamedTuple

from fedjax_lab.data import safe

LARGEST = 10  # bytes unpacked for each one of the archive: images hardly shrink
MOST = 2_000_000  # members
BLOCK = 2**20  # bytes


class Member(NamedTuple):
    """A file as it was unpacked."""

    path: PurePosixPath
    size: int
    crc: int


class Claim(NamedTuple):
    """What an archive says of a member."""

    path: str
    size: int
    is_plain: bool  # a file or a folder


def unpack(
    archive: Path, folder: Path, remedy: str, written: Callable[[int], object]
) -> list[Member]:
    """Unpacks all files of an archive; those of a zip that are there as they should be stay.

    Args:
      archive: a gzipped tar file where its name ends so, else a zip file.
      folder: where to.
      remedy: what to do about a bad archive.
      written: called with the number of bytes of each file.

    Raises:
      BadInput: the archive is damaged, or holds links, paths that lead out of the folder, or more
        than LARGEST times its own bytes. Nothing has been written then, except before damage.
    """
    method = _untar if archive.name.endswith(".tar.gz") else _unzip
    with safe.reading(archive, remedy), safe.opened(archive) as file:
        return method(file, archive.stat().st_size, folder, written)


def _unzip(file: BinaryIO, stored: int, folder: Path, written: Callable) -> list[Member]:
    with zipfile.ZipFile(file) as content:
        infos = content.infolist()
        check(map(_zip_claim, infos), stored)
        return [_from_zip(content, info, folder, written) for info in infos if not info.is_dir()]


def _untar(file: BinaryIO, stored: int, folder: Path, written: Callable) -> list[Member]:
    """Reads the archive twice: everything is checked before the first file is written."""
    with tarfile.open(fileobj=file, mode="r:gz") as content:
        check((Claim(i.name, i.size, i.isreg()) for i in content if not i.isdir()), stored)
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:gz") as content:
        return [_from_tar(content, info, folder, written) for info in content if info.isreg()]


def check(claims: Iterable[Claim], stored: int) -> None:
    """ValueError for members that must not be unpacked from so many bytes."""
    total = count = 0
    for claim in claims:
        total, count = total + claim.size, count + 1
        if total > LARGEST * stored or count > MOST:
            raise ValueError(f"it would unpack to {total} bytes in {count} files")
        path, name = PurePosixPath(claim.path), claim.path
        odd = "\\" in name or ":" in name or not name.isprintable()
        if path.is_absolute() or ".." in path.parts or not path.parts or odd:
            raise ValueError(f"{name[:80]!r} is no path in the folder")
        if not claim.is_plain:
            raise ValueError(f"{name[:80]!r} is a link or a device")


def _zip_claim(info: zipfile.ZipInfo) -> Claim:
    kind = stat.S_IFMT(info.external_attr >> 16)
    return Claim(info.filename, info.file_size, kind in (0, stat.S_IFREG, stat.S_IFDIR))


def _from_zip(content, info, folder, written):
    target = folder / info.filename
    if not _is_there(target, info):
        with content.open(info) as member:
            _write(member, target)
    written(info.file_size)
    return Member(PurePosixPath(info.filename), info.file_size, info.CRC)


def _from_tar(content, info, folder, written):
    """A tar file has no checksums, so that a file that is there is written again."""
    with content.extractfile(info) as member:
        value = _write(member, folder / info.name)
    written(info.size)
    return Member(PurePosixPath(info.name), info.size, value)


def _write(member: IO[bytes], target: Path) -> int:
    """Writes a file; returns its CRC-32."""
    value = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        for block in blocks(member):
            value = zlib.crc32(block, value)
            out.write(block)
    return value


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
