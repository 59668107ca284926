"""Files of strangers are opened here: regular files only, and no more than memory can hold.

A few bytes may claim anything: an array of 64 GB, an archive of zeros, a pipe in a picture's place.
So a claim is checked before it is believed, against the bytes that are there (`check_claim`) and
against the memory of this machine (`check_memory`). `reading` makes every other fault of a file one
BadInput.
"""

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import psutil

from fedjax_lab.errors import MACHINE, BadInput

DEFLATE = 1032  # to one: the best that zip and gzip can do
SMALL = 2**26  # bytes that any machine has: for so few memory is not looked at
CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class TooLargeError(Exception):
    """What a file holds does not fit in memory."""


@contextlib.contextmanager
def reading(
    path: Path | str, remedy: str, problem: str = "cannot be read", part: str = ""
) -> Iterator[None]:
    """Whatever goes wrong inside becomes BadInput: `path: part problem (reason): remedy`.

    Trouble of the machine passes through: its disk, and its memory if it lacks that for a file that
    could not need much.
    """
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # a damaged or forged file can make its parser raise any
        if isinstance(error, OSError) and error.errno in MACHINE:
            raise
        if isinstance(error, MemoryError) and not _is_small(path):
            raise
        reason = (str(error) or type(error).__name__)[:200]
        reason = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
        name = f"{path}: {part}" if part else path
        if isinstance(error, TooLargeError):
            raise BadInput(f"{name} does not fit in memory: {reason}") from error
        raise BadInput(f"{name} {problem} ({reason}): {remedy}") from error


def check_regular(path: Path) -> None:
    """OSError unless the path is of a regular file: opening a pipe waits for ever."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError("it is a folder")
    if not stat.S_ISREG(mode):
        raise OSError("it is a pipe, a socket or a device, not a regular file")


def opened(path: Path) -> BinaryIO:
    """The file, open to be read; OSError unless it is a regular one."""
    check_regular(path)
    return path.open("rb")


def content(path: Path) -> bytes:
    """All bytes of a regular file that fits in memory."""
    check_regular(path)
    check_memory(path.stat().st_size)
    return path.read_bytes()


def lines(path: Path, remedy: str) -> list[str]:
    """The lines of a text file that are not empty, at least one; or else BadInput."""
    with reading(path, remedy):
        nonempty = [line for line in content(path).decode().splitlines() if line.strip()]
    if not nonempty:
        raise BadInput(f"{path} is empty: {remedy}")
    return nonempty


def check_claim(size: int, stored: int) -> None:
    """ValueError unless `stored` bytes, maybe deflated, can be `size` bytes; and `check_memory`."""
    if size > DEFLATE * stored:
        raise ValueError(f"it claims {size} bytes, which cannot be in the {stored} that are there")
    check_memory(size)


def check_memory(size: int) -> None:
    """TooLargeError unless the free memory has room for `size` bytes twice: as read, as arrays."""
    if size > SMALL and 2 * size > free_memory():
        raise TooLargeError(
            f"{size / 2**30:,.1f} GiB are more than half of the {free_memory() / 2**30:,.1f} GiB"
            " that are free"
        )


def free_memory() -> int:
    """Bytes that this process may still take, by the machine and by the limit of its container."""
    free = psutil.virtual_memory().available
    for file in map(Path, CGROUPS):
        with contextlib.suppress(OSError, ValueError):
            free = min(free, int(file.read_text()) - psutil.Process().memory_info().rss)
    return free


def _is_small(path: Path | str) -> bool:
    """Whether memory would suffice for the file even if it were deflated as well as possible."""
    with contextlib.suppress(OSError):
        return 2 * DEFLATE * Path(path).stat().st_size < free_memory()
    return False
