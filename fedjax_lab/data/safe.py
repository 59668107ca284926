"""Safe access to untrusted files: only regular files, and no more than memory can hold.

A few bytes can declare any size: an array of 64 GB, or an archive of zeros; and a path may be a
pipe. So every declared size is checked against the size of the file (`check_claim`) and against the
memory of this machine (`check_memory`) before it is used. `reading` turns every other error of a
file into BadInput.
"""

import contextlib
import math
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import psutil

from fedjax_lab.data import limits
from fedjax_lab.errors import MACHINE, BadInput, missing

DEFLATE = 1032  # the highest compression ratio of zip and gzip
CONSTANT = 1000  # the ratio from which on larger content than SMALL is practically constant
SMALL = 2**26  # bytes; the free memory is checked only for larger sizes
CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class TooLargeError(Exception):
    """Raised when the content of a file does not fit in memory."""


class Fault(BadInput):
    """Describes what is wrong with a file; `remedied` adds the remedy."""


@contextlib.contextmanager
def remedied(remedy: str) -> Iterator[None]:
    """Ends the message of each Fault inside the context, or the decorated function, with a remedy.

    So only the data source, which knows how to get its files, has to name the remedy.
    """
    try:
        yield
    except Fault as error:
        raise BadInput(f"{error}: {remedy}") from error


@contextlib.contextmanager
def reading(
    path: Path | str,
    remedy: str = "",
    problem: str = "cannot be read",
    part: str = "",
    extra: str = "",
) -> Iterator[None]:
    """Turns any error inside the context into BadInput: `path: part problem (reason): remedy`.

    If the file does not exist, this is `path is missing: remedy`. Without a remedy, it is a Fault.
    If a package is missing, the error names the `extra` of this package that has it. Errors of the
    machine pass through: those of the disk, and a lack of memory if the file is too small to be its
    cause.
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
        if isinstance(error, ImportError) and extra:
            raise missing(error, extra) from error
        kind, end = (BadInput, f": {remedy}") if remedy else (Fault, "")
        if isinstance(error, FileNotFoundError) and str(error.filename) == str(path):
            raise kind(f"{path} is missing{end}") from error
        reason = (str(error) or type(error).__name__)[:200]
        reason = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
        name = f"{path}: {part}" if part else path
        if isinstance(error, TooLargeError):
            raise BadInput(f"{name} does not fit in memory: {reason}") from error
        raise kind(f"{name} {problem} ({reason}){end}") from error


def check_regular(path: Path) -> None:
    """Raises OSError unless the path is a regular file; opening a pipe could block forever."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError("it is a folder")
    if not stat.S_ISREG(mode):
        raise OSError("it is a pipe, a socket or a device, not a regular file")


def opened(path: Path) -> BinaryIO:
    """Opens a file for reading. Raises OSError unless it is a regular file."""
    check_regular(path)
    return path.open("rb")


def content(path: Path) -> bytes:
    """All bytes of a file. Raises an error unless it is a regular file that fits in memory."""
    check_regular(path)
    check_memory(path.stat().st_size)
    return path.read_bytes()


def glob(folder: Path, pattern: str) -> list[Path]:
    """The matching files of a folder, sorted, without hidden ones, such as macOS's `._NAME`."""
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def lines(path: Path) -> list[str]:
    """The non-empty lines of a text file. Raises a Fault if there are none."""
    with reading(path):
        nonempty = [line for line in content(path).decode().splitlines() if line.strip()]
    if not nonempty:
        raise Fault(f"{path} is empty")
    return nonempty


def check_claim(size: int, stored: int) -> None:
    """Raises ValueError if `stored` bytes, possibly compressed, cannot hold `size` useful bytes.

    Also raises TooLargeError as `check_memory` does.
    """
    if size > DEFLATE * stored:
        raise ValueError(f"it declares {size} bytes, more than its {stored} bytes can hold")
    check_memory(size)
    if size > max(SMALL, CONSTANT * stored):
        raise ValueError(f"its {stored} bytes hold {size} bytes, which must be all the same")


def check_memory(size: int) -> None:
    """Raises TooLargeError unless memory has room for `size` bytes twice: as read and as arrays."""
    if size > SMALL and 2 * size > free_memory():
        raise TooLargeError(
            f"{size / 2**30:,.1f} GiB are more than half of the {free_memory() / 2**30:,.1f} GiB"
            " that are free"
        )


def check_fits(size: int, what: str, remedy: str) -> None:
    """Raises BadInput as `check_memory` does for `size` bytes. what: the plural in its message."""
    try:
        check_memory(size)
    except TooLargeError as error:
        raise BadInput(f"{what} do not fit in memory: {error}; {remedy}") from error


def free_memory() -> int:
    """The bytes that this process may still allocate, also within the limits set for it."""
    free, used = psutil.virtual_memory().available, psutil.Process().memory_info()
    set_for_it = limits.memory()
    free = min(free, set_for_it.get("ulimit -v", math.inf) - used.vms)
    free = min(free, set_for_it.get("ulimit -d", math.inf) - getattr(used, "data", 0))
    for file in map(Path, CGROUPS):
        with contextlib.suppress(OSError, ValueError):
            free = min(free, int(file.read_text()) - used.rss)
    return max(0, int(free))


def _is_small(path: Path | str) -> bool:
    """Whether memory would suffice for the file even at the highest compression ratio."""
    with contextlib.suppress(OSError):
        return 2 * DEFLATE * Path(path).stat().st_size < free_memory()
    return False
