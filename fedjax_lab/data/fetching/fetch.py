"""Fetches a published data set; it appears in its folder only when it is complete.

Until then all files are in a hidden folder .fetch-NAME beside it, which no data source reads and
which a later call continues: archives/ has the archives, and new/ what will be moved to the folder.
"""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fedjax_lab.data import safe
from fedjax_lab.data.fetching import unpack
from fedjax_lab.data.fetching.catalog import Published
from fedjax_lab.data.fetching.download import PART, download, matches
from fedjax_lab.errors import BadInput

CHECKSUMS = ".checksums"  # a file in an unpacked folder with lines of CRC-32, size and path
AGAIN = "remove it and fetch it again"


Progress = Callable[[str, int], AbstractContextManager[Any]]  # (name, bytes or 0) -> tqdm's bar


def stage(name: str, folder: Path) -> Path:
    """The hidden folder in which the data set `name` is prepared; hold its lock to call `fetch`."""
    return folder / f".fetch-{name}"


def fetch(
    data: Published,
    folder: Path,
    staged: Path,
    progress: Progress,
    tell: Callable[[str], object],
) -> bool:
    """Fetches, verifies and unpacks a data set, unless it is already in the folder.

    Args:
      data: a data set that has `files`.
      folder: the folder of all data sets.
      staged: the hidden folder; see `stage`.
      progress: makes a progress bar.
      tell: called with lines for the user.

    Returns:
      Whether anything was fetched.

    Raises:
      BadInput: something else is in the data set's place, or an archive cannot be unpacked.
      Unavailable: a file cannot be fetched; the bytes received so far are kept.
    """
    target = folder / data.target
    needed = not target.exists()
    if needed:
        new, archives = staged / "new", staged / "archives"
        for file in data.files:
            path = archives / file.name if file in data.archives else new / file.path
            if not path.exists():
                _download(file, path, progress, tell)
        _unpack(data, archives, new, progress)
        if not (new / data.target).exists():
            raise BadInput(
                f"the fetched archives have no {data.target}; nothing was written to {folder}"
            )
        os.rename(new / data.target, target)
    elif problem := incomplete(data, folder):
        raise BadInput(
            f"{target} exists, but is not what would be fetched: {problem}; move it away or name"
            " another folder with --folder"
        )
    for path in (staged / "new", staged / "archives"):
        shutil.rmtree(path, ignore_errors=True)
    return needed


def is_fetched(data: Published, folder: Path) -> bool:
    """Whether `fetch` has put the data set in the folder; it may have been damaged since."""
    marker = CHECKSUMS if data.archives else ""
    return bool(data.files) and (folder / data.target / marker).exists()


def incomplete(data: Published, folder: Path) -> str:
    """A missing file, or one of the wrong size, in words; "" if the data set is complete."""
    for file in data.plain:
        path = folder / file.path
        if not path.is_file():
            return f"{path} is missing"
        if file.size and path.stat().st_size != file.size:
            return f"{path} has {path.stat().st_size} bytes, not {file.size}"
    if data.archives and not (folder / data.target / CHECKSUMS).is_file():
        return f"{folder / data.target} has no {CHECKSUMS}"
    return ""


def damage(data: Published, folder: Path) -> str:
    """The first damage of a fetched data set, in words, or ""; reads every byte of it."""
    if problem := incomplete(data, folder):
        return problem
    for file in data.plain:
        if not matches(file, folder / file.path):
            return f"{folder / file.path} is damaged: its checksum is not {file.checksum}; {AGAIN}"
    where = folder / data.target
    with safe.remedied(AGAIN):
        lines = safe.lines(where / CHECKSUMS) if data.archives else []
    for line in lines:
        crc, size, name = (*line.split(" ", 2), "", "")[:3]
        path = where / name
        if not path.is_file():
            return f"{path} is missing; {AGAIN}"
        if f"{path.stat().st_size}" != size or f"{unpack.crc(path):08x}" != crc:
            return f"{path} is damaged; {AGAIN}"
    return ""


def _download(file, path, progress, tell):
    part = path.with_name(path.name + PART)
    _check_room(path, file.size - (part.stat().st_size if part.exists() else 0))
    with progress(file.name, file.size) as bar:
        address = download(file, path, lambda there: bar.update(there - bar.n), tell)
    tell(f"{file.name}: {path.stat().st_size} bytes from {address}, verified")


def _unpack(data: Published, archives: Path, new: Path, progress: Progress) -> None:
    """Unpacks the archives to `new`, and writes the checksum of each file to CHECKSUMS."""
    if not data.archives:
        return
    lines: list[str] = []
    for file in data.archives:
        archive, inner = archives / file.name, new / Path(file.path).parent
        _check_room(new, file.size)  # images are hardly compressed in an archive
        with progress(f"unpacking {file.name}", file.size) as bar:
            members = unpack.unpack(archive, inner, f"remove {archive} and fetch again", bar.update)
        for member in members:
            path = inner / member.path
            if path.is_relative_to(new / data.target):
                name = path.relative_to(new / data.target).as_posix()
                lines.append(f"{member.crc:08x} {member.size} {name}\n")
    if lines:
        (new / data.target / CHECKSUMS).write_text("".join(lines))


def _check_room(path: Path, size: int) -> None:
    """Raises OSError if the disk has no room for `size` more bytes at this path."""
    folder = next(parent for parent in path.parents if parent.exists())
    free = shutil.disk_usage(folder).free
    if size > free:
        what = f"not enough space on the disk: {size} bytes are needed, {free} are free"
        raise OSError(errno.ENOSPC, what, str(folder))
