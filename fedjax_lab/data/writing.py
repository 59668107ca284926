"""Replaces files atomically, so that a full disk or a kill leaves the old file as it was."""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

LONGEST_STEM = 200  # bytes of a file's name that the name of its temporary file repeats


def replace(path: Path, content: bytes) -> None:
    """Writes a file atomically: at any moment it holds either its old or all of its new content.

    A pipe or a device, such as /dev/stdout, is written directly.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Yields the path of a file to write, which then replaces `path` atomically.

    The replaced file keeps its permissions, and a link is followed. After any error, including an
    interrupt, the old file is unchanged and the temporary one is removed; an OSError then names
    `path`. After a kill the temporary file remains, see `is_temporary`.

    Args:
      path: the file to replace; it need not exist.
      temporary: the path of the temporary file, in the same folder; None: a unique one.
    """
    target = Path(os.path.realpath(path)) if temporary is None else path
    temporary = temporary or _unique(target)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError, PermissionError):
            temporary.chmod(target.stat().st_mode & 0o777)
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


def append(path: Path, content: bytes) -> None:
    """Appends to a file and flushes it to disk; after an error it has its earlier content."""
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            rest = memoryview(content)
            while len(rest):
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except BaseException as error:
            file.truncate(before)
            if isinstance(error, OSError) and error.errno and error.filename is None:
                error.filename = str(path)
            raise


def is_temporary(path: Path) -> bool:
    """Whether the file is a temporary file of `replace`, as a killed process leaves it."""
    return re.fullmatch(r".+\.[0-9a-f]{8}\.tmp", path.name) is not None


def _unique(path):
    stem = os.fsdecode(os.fsencode(path.name)[:LONGEST_STEM])
    return path.with_name(f"{stem}.{secrets.token_hex(4)}.tmp")
