"""A local folder that is synchronized with a place in an object store, file by file.

Each file is uploaded as a whole, before any file that relies on it. After a kill at any moment, the
store therefore holds a run that can be resumed. A checkpoint is valid once its
`commit_success.txt` exists, as in orbax on object stores.
"""

import contextlib
import errno
import os
import platform
import re
import secrets
from pathlib import Path
from typing import Any

from fedjax_lab import writing
from fedjax_lab.errors import MACHINE, BadInput, cut

COMMITTED = "commit_success.txt"  # in a checkpoint that was uploaded as a whole
OWNER = ".owner"  # in the folder of a run
LARGE = ("checkpoints", "kept", "profile")  # folders that only their own run reads
ORDER = {  # the order of uploads; 0: other files and clients' state; 2 and 3: checkpoints
    "fingerprint.json": -3,
    "sweep.json": -2,
    "config.json": -1,
    "metrics.jsonl": 1,
    "summary.json": 4,
}


class WorkingCopy:
    """A local folder and the place in a store that it mirrors. Names are relative to both."""

    def __init__(self, url: str, store: Any, base: str, local: Path, writes: bool):
        """Creates a copy without files.

        Args:
          url: the user's name for the place.
          store: an fsspec file system.
          base: the path of the place in this file system.
          local: the local folder.
          writes: whether to upload files.
        """
        self.url, self.local, self.failed = url, local, False
        self._store, self._base, self._writes = store, base, writes
        self._seen: dict[str, str] = {}  # the store's metadata of each fetched file
        self._same: dict[str, str] = {}  # the stamps of local files that equal those in the store
        self._marks: dict[str, bytes] = {}  # the marks of the runs that this command has taken

    def refresh(self, folder: str, whole: bool = False) -> None:
        """Fetches changed files from the store; large files only if `whole` is true."""
        with self._reading():
            self._store.invalidate_cache()
            listed = self._store.find(self._remote(folder), detail=True)
            stored = {path[len(self._base) + 1 :]: info for path, info in listed.items()}
            if "" in stored:
                raise BadInput(f"{self.url} is a file, not a folder")
            for name, info in stored.items():
                if _is_working(name.split("/")) or name.endswith("/"):
                    continue
                if _is_torn(name, stored):
                    self._same |= {name: ""} if whole else {}  # so that it is removed
                elif whole or not (large := _large(name)):
                    self._fetch(name, info)
                else:  # so that the folder of the large files exists
                    (self.local / large).mkdir(parents=True, exist_ok=True)

    def _fetch(self, name, info):
        path, seen = self.local / name, repr(info)
        if path.exists():
            is_new = self._same.get(name) != _stamp(path)  # the local file is not uploaded yet
            if is_new or self._seen.get(name) == seen:
                return
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing.replacing(path) as temporary:
            self._store.get_file(self._remote(name), str(temporary))
            if temporary.stat().st_size != info["size"]:
                raise OSError(f"{name} was truncated")
        self._seen[name], self._same[name] = seen, _stamp(path)

    def take(self, folder: str) -> None:
        """Marks the folder of a run as owned by this command, and fetches all its files."""
        if self._writes:
            mark = f"process {os.getpid()} on {platform.node()}, {secrets.token_hex(4)}"
            self._marks[folder] = mark.encode()
            with self._writing():
                self._store.pipe_file(self._owner(folder), self._marks[folder])
        self.refresh(folder, whole=True)

    def release(self, folder: str) -> None:
        """Removes the mark if it is still this command's."""
        with contextlib.suppress(Exception):  # the work is done or has already failed
            if folder in self._marks and not self.other_owner(folder):
                self._store.rm_file(self._owner(folder))
                del self._marks[folder]

    def forget(self, folder: str) -> None:
        """Removes the mark of a folder that has no other files, as after a kill."""
        if self._writes:
            with self._writing():
                if self._store.exists(self._owner(folder)):
                    self._store.rm_file(self._owner(folder))

    def other_owner(self, folder: str) -> str:
        """The mark of the command that has taken over a run of this command; "" if none has."""
        if folder not in self._marks:
            return ""
        with self._writing():
            try:
                mark = self._store.cat_file(self._owner(folder))
            except FileNotFoundError:  # another command took the run and has finished
                return "which has ended since"
        if mark == self._marks[folder]:
            return ""
        return cut(mark.decode(errors="replace"), 120)

    def publish(self, folder: str) -> None:
        """Synchronizes the store with a local folder, except runs that others have taken over.

        Removed files are deleted from the store first; an older checkpoint is deleted only after
        the newer one has been uploaded.
        """
        if not self._writes:
            return
        taken = {run for run in self._marks if _is_in(run, folder) and self.other_owner(run)}
        local = {name: stamp for name, stamp in self._files(folder) if not _in_any(name, taken)}
        new = sorted((name for name in local if self._same.get(name) != local[name]), key=_rank)
        gone = [n for n in self._same if _is_in(n, folder) and n not in local]
        gone = [name for name in gone if not _in_any(name, taken)]
        gone.sort(key=_rank, reverse=True)
        late = [name for name in gone if _is_superseded(name, local)]
        with self._writing():
            for name in gone:
                if name not in late:
                    self._delete(name)
            for name in new:
                self._store.put_file(str(self.local / name), self._remote(name))
                self._same[name] = local[name]
            for name in late:
                self._delete(name)
        self.failed &= bool(folder or taken)  # after a full upload nothing is missing in the store

    def _delete(self, name):
        with contextlib.suppress(FileNotFoundError):
            self._store.rm_file(self._remote(name))
        del self._same[name]
        self._seen.pop(name, None)

    def _files(self, folder):
        """Yields (name, stamp) of the files to upload. Marks complete checkpoints as such."""
        for path in sorted(self.local.joinpath(folder).rglob("checkpoints/[0-9]*")):
            if path.name.isdigit() and not (path / COMMITTED).exists() and any(path.iterdir()):
                (path / COMMITTED).touch()
        for path in sorted(self.local.joinpath(folder).rglob("*")):
            parts = path.relative_to(self.local).parts
            if path.is_file() and not _is_working(parts):
                yield "/".join(parts), _stamp(path)

    def _remote(self, name):
        return f"{self._base}/{name}".rstrip("/")

    def _owner(self, folder):
        return self._remote(f"{folder}/{OWNER}".lstrip("/"))

    @contextlib.contextmanager
    def _reading(self):
        try:
            yield
        except Exception as error:
            if isinstance(error, (BadInput, MemoryError)) or getattr(error, "errno", 0) in MACHINE:
                raise
            raise BadInput(f"{self.url} cannot be read: {_reason(error)}") from error

    @contextlib.contextmanager
    def _writing(self):
        try:
            yield
        except Exception as error:
            self.failed = True
            text = f"{self.url} cannot be written: {_reason(error)}; all files are in {self.local}"
            raise OSError(errno.EIO, text) from error


def _reason(error):
    return cut(f"{' '.join(str(error).split())} ({type(error).__name__})", 200)


def _stamp(path):
    stat = path.stat()
    return f"{stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"


def _is_in(name, folder):
    return not folder or name == folder or name.startswith(f"{folder}/")


def _in_any(name, folders):
    return any(_is_in(name, folder) for folder in folders)


def _is_working(parts):
    """Whether a file is a lock, a hidden file or an unfinished file, which is not uploaded."""
    of_ours = parts[: parts.index("checkpoints")] if "checkpoints" in parts else parts
    return any(part.startswith(".") for part in of_ours) or any(
        part == ".." or part.endswith(".tmp") or "orbax-checkpoint-tmp" in part for part in parts
    )


def _checkpoint(name):
    """The run's folder and the number of the checkpoint that a file belongs to, or None."""
    match = re.match(r"((?:.*/)?)(checkpoints|kept)/(\d+)/", name)
    return (match[1], int(match[3])) if match else None


def _committed(run, number):
    """The last file of a checkpoint, which marks it as complete."""
    return f"{run}checkpoints/{number}/{COMMITTED}"


def _is_torn(name, names):
    """Whether a file belongs to a checkpoint whose upload was cut short by a kill."""
    of = _checkpoint(name)
    return of is not None and _committed(*of) not in names


def _large(name):
    """The folder of large files that a file is in; "" for other files."""
    match = re.match(rf"((.*/)?({'|'.join(LARGE)}))/", name)
    return match[1] if match else ""


def _is_superseded(name, names):
    """Whether `names` has a file of a newer checkpoint of the same run."""
    of = _checkpoint(name)
    others = [] if of is None else filter(None, map(_checkpoint, names))
    return any(run == of[0] and number > of[1] for run, number in others)


def _rank(name):
    """A sort key for uploads, by which each file comes after the files that it relies on."""
    of, file = _checkpoint(name), name.rpartition("/")[2]
    if of is None:
        return ORDER.get(file, 0), name
    if name == _committed(*of):
        return 3, name
    return (2 if "checkpoints/" in name else 0), name
