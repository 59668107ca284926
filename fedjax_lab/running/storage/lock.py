"""Locks on the folders of runs and sweeps: only one command at a time may write to a folder.

A lock is a lock of the operating system on a hidden file in the folder. It ends when the process
that holds it ends. Readers take no lock.
"""

import contextlib
import errno
import fcntl
import functools
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import filelock

from fedjax_lab.errors import BadInput, warn
from fedjax_lab.running.storage import metric_rows

LOCK = ".lock"  # in the folder of a run
SHARES = ".share-*-of-*.lock"  # in the folder of a sweep
PATIENCE = 60.0  # seconds to wait for other commands that write the plan of a sweep
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
# the error codes of file systems without locks


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Makes this thread the owner of a run's folder while the context is active.

    The thread may enter the context again. The folder is created if needed, and removed at the end
    if nothing was written to it. Raises BadInput if it has another owner or is not writable.
    """
    with _made(folder), _held(folder / LOCK):
        yield


def check_free(folders: Iterable[Path]) -> None:
    """Raises BadInput if one of the folders has another owner."""
    for folder in folders:
        if folder.is_dir():
            with _held(folder / LOCK):
                pass


def is_held(folder: Path) -> bool:
    """Whether a running command owns a run's folder. Changes no file."""
    return _is_held(folder / LOCK)


def held_shares(folder: Path) -> list[str]:
    """The shares I/N of a sweep that running commands own. Changes no file."""
    held = [path.name for path in sorted(folder.glob(SHARES)) if _is_held(path)]
    return ["/".join(re.findall(r"\d+", name)) for name in held]


def _is_held(path):
    """Whether a process holds the lock, tested with a shared lock that is released at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in NO_LOCKS
    finally:
        os.close(descriptor)  # also releases the lock if it was acquired
    return False


@contextlib.contextmanager
def owned_share(folder: Path, share: str = "0/1") -> Iterator[None]:
    """Like `owned`, for the share I/N of a sweep: every N-th cell, beginning with cell I.

    Raises BadInput if a running command owns a share that overlaps with this one.
    """
    number, count = map(int, share.split("/"))
    with _made(folder), contextlib.ExitStack() as until_the_end:
        with planning(folder):
            for path in sorted(folder.glob(SHARES)):
                other, others = map(int, re.findall(r"\d+", path.name))
                if (number - other) % math.gcd(count, others) == 0:
                    with _held(path):
                        pass
            lock_file = folder / f".share-{number}-of-{count}.lock"
            until_the_end.enter_context(_held(lock_file))
        yield


def planning(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Prevents the other shares of a sweep from writing its plan while the context is active."""
    return _held(folder / ".plan.lock", PATIENCE)


def discard(folder: Path) -> None:
    """Removes a folder that this process owns if nothing has been written to it."""
    with contextlib.suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {LOCK}:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


@contextlib.contextmanager
def _made(folder):
    """Creates the folder and its parents; at the end removes those of them that are empty."""
    folder = _absolute(folder)
    made = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not existing.is_dir():
        raise BadInput(f"{existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise BadInput(f"{existing} is not writable")
    metric_rows.make_folder(folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # stops at the first folder that is not empty
            for path in made:
                path.rmdir()


def _absolute(folder):
    """The absolute path. Raises BadInput if there is none, or if it is not valid UTF-8."""
    try:
        path = folder.absolute()
        str(path).encode()
    except FileNotFoundError as error:
        raise BadInput(f"{folder}: the current folder has been removed") from error
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{folder} cannot hold a run, because checkpoints need a path in valid UTF-8; name"
            " another folder"
        ) from error
    return path


@contextlib.contextmanager
def _held(path, wait=0.0):
    """Holds the lock on a file, which is created for this and removed afterward."""
    path = path.resolve()
    # The file of a soft lock would remain after its process is killed.
    lock = filelock.FileLock(path, timeout=wait, is_singleton=True, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise BadInput(
            f"{path.parent} is in use by another command that is still running: wait until it"
            " ends, or name another folder"
        ) from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        _warn_no_locks(path.parent)
    try:
        yield
    finally:
        if lock.lock_counter <= 1:
            path.unlink(missing_ok=True)  # while it is held: filelock reopens a removed file
        lock.release()


@functools.cache
def _warn_no_locks(folder):
    warn(
        f"the file system of {folder} does not support locks: do not start a second command on"
        " this folder"
    )
