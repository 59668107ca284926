"""Unpacks .zip and .tar.gz: only regular files within the folder, and of limited total size."""

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, NamedTuple

from fedjax_lab.data import safe

LARGEST = 10  # highest compression ratio: images are hardly compressed
MOST = 2_000_000  # highest number of members
BLOCK = 2**20  # bytes


class Member(NamedTuple):
    """An unpacked file."""

    path: PurePosixPath
    size: int
    crc: int


class Claim(NamedTuple):
    """A member as an archive declares it."""

    path: str
    size: int
    is_plain: bool  # a file or a folder


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
    method = _untar if archive.name.endswith(".tar.gz") else _unzip
    with safe.reading(archive, remedy), safe.opened(archive) as file:
        return method(file, archive.stat().st_size, folder, written)


def _unzip(file: BinaryIO, stored: int, folder: Path, written: Callable) -> list[Member]:
    with zipfile.ZipFile(file) as content:
        infos = content.infolist()
        check(map(_zip_claim, infos), stored)
        return [_from_zip(content, info, folder, written) for info in infos if not info.is_dir()]


def _untar(file: BinaryIO, stored: int, folder: Path, written: Callable) -> list[Member]:
    """Reads the archive twice: all members are checked before the first file is written."""
    with tarfile.open(fileobj=file, mode="r:gz") as content:
        check((Claim(i.name, i.size, i.isreg()) for i in content if not i.isdir()), stored)
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:gz") as content:
        return [_from_tar(content, info, folder, written) for info in content if info.isreg()]


def check(claims: Iterable[Claim], stored: int) -> None:
    """Raises ValueError if members must not be unpacked from an archive of `stored` bytes."""
    total = count = 0
    for claim in claims:
        total, count = total + claim.size, count + 1
        if total > LARGEST * stored or count > MOST:
            raise ValueError(f"it would unpack to {total} bytes in {count} files")
        path, name = PurePosixPath(claim.path), claim.path
        odd = "\\" in name or ":" in name or not name.isprintable()
        if path.is_absolute() or ".." in path.parts or not path.parts or odd:
            raise ValueError(f"{name[:80]!r} is not a path within the folder")
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
    """Writes a member of a tar file, also if it exists: tar files have no checksums."""
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
