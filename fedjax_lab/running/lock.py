"""Locks on the folders of runs and sweeps: one command at a time may write in a folder.

A lock is the operating system's, on a hidden file of the folder, and ends with the process that
holds it. Readers take no lock.
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
from fedjax_lab.running import metrics

LOCK = ".lock"  # in the folder of a run
PATIENCE = 60.0  # seconds, with others who write the plan of a sweep
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
# what a file system without locks answers


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Makes this thread the owner of a run's folder, as long as the context lasts.

    It may ask again. The folder is made; if nothing has been written to it at the end, it is
    removed. BadInput where it has another owner, or where nothing can be written.
    """
    with _made(folder), _held(folder / LOCK):
        yield


def check_free(folders: Iterable[Path]) -> None:
    """BadInput where one of the folders has another owner."""
    for folder in folders:
        if folder.is_dir():
            with _held(folder / LOCK):
                pass


def is_held(folder: Path) -> bool:
    """Whether a command that is still running owns a run's folder; nothing in it is changed."""
    return _is_held(folder / LOCK)


def count_held(folder: Path, pattern: str) -> int:
    """How many of the lock files with such names are held; nothing in the folder is changed."""
    return sum(map(_is_held, folder.glob(pattern)))


def _is_held(path):
    """Asks for the lock without keeping it: whoever holds it holds it alone."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in NO_LOCKS
    finally:
        os.close(descriptor)  # and with it the lock, if it was given
    return False


@contextlib.contextmanager
def owned_share(folder: Path, share: str = "0/1") -> Iterator[None]:
    """Like `owned`, for the share I/N of a sweep: every N-th cell from number I on.

    BadInput where a command that is still running has a share that this one overlaps.
    """
    number, count = map(int, share.split("/"))
    with _made(folder), contextlib.ExitStack() as until_the_end:
        with planning(folder):
            for path in sorted(folder.glob(".share-*-of-*.lock")):
                other, others = map(int, re.findall(r"\d+", path.name))
                if (number - other) % math.gcd(count, others) == 0:
                    with _held(path):
                        pass
            lock_file = folder / f".share-{number}-of-{count}.lock"
            until_the_end.enter_context(_held(lock_file))
        yield


def planning(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Keeps the other shares of a sweep from writing its plan, as long as the context lasts."""
    return _held(folder / ".plan.lock", PATIENCE)


def discard(folder: Path) -> None:
    """Removes a folder of which this process is the owner, if nothing has been written to it."""
    with contextlib.suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {LOCK}:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


@contextlib.contextmanager
def _made(folder):
    """Makes the folder and its parents, and in the end removes those of them that are empty."""
    folder = _absolute(folder)
    made = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not there.is_dir():
        raise BadInput(f"{there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(f"nothing can be written in {there}")
    metrics.make_folder(folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # from one on they are not empty
            for path in made:
                path.rmdir()


def _absolute(folder):
    """BadInput where the path has no absolute one, or cannot be that of a checkpoint."""
    try:
        path = folder.absolute()
        str(path).encode()
    except FileNotFoundError as error:
        raise BadInput(f"{folder}: the current folder has been removed") from error
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{folder} cannot hold a run: checkpoints need a path that is text in UTF-8; name"
            " another folder"
        ) from error
    return path


@contextlib.contextmanager
def _held(path, wait=0.0):
    """Holds the lock on a file, which is made for it and removed afterward."""
    path = path.resolve()
    # The name of a soft lock would outlive a process that is killed.
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
        _tell_no_locks(path.parent)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
        return
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            path.unlink(missing_ok=True)  # while it is held: whoever has opened it looks again
        lock.release()


@functools.cache
def _tell_no_locks(folder):
    warn(f"the file system of {folder} has no locks: do not start a second command on this folder")
