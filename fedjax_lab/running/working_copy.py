"""A local folder that is made equal to a place in a store of objects, file by file.

The store takes each file as a whole, and they come in such an order that after a kill at any moment
it holds a run that can be resumed: a file comes before those that rely on it. A checkpoint counts
once its `commit_success.txt` is there, as orbax has it on object stores.
"""

import contextlib
import errno
import os
import platform
import re
import secrets
from pathlib import Path
from typing import Any

from fedjax_lab.errors import MACHINE, BadInput, cut

COMMITTED = "commit_success.txt"  # in a checkpoint that was uploaded as a whole
OWNER = ".owner"  # in the folder of a run
LARGE = ("checkpoints", "kept", "profile")  # folders that are read by nobody but their run
ORDER = {  # in which files are uploaded; 0: others and what clients keep, 2 and 3: checkpoints
    "fingerprint.json": -3,
    "sweep.json": -2,
    "config.json": -1,
    "metrics.jsonl": 1,
    "summary.json": 4,
}


class WorkingCopy:
    """A local folder and the place in a store that it is a copy of. Names are relative to both."""

    def __init__(self, url: str, store: Any, base: str, local: Path, writes: bool):
        """A copy without files.

        Args:
          url: how the user names the place.
          store: a file system of fsspec.
          base: how that names the place.
          local: the folder.
          writes: whether anything is uploaded.
        """
        self.url, self.local, self.failed = url, local, False
        self._store, self._base, self._writes = store, base, writes
        self._seen: dict[str, str] = {}  # what the store says of files that were fetched
        self._same: dict[str, str] = {}  # the stamps of local files as they are in the store
        self._marks: dict[str, bytes] = {}  # of the runs that were taken

    def refresh(self, folder: str, whole: bool = False) -> None:
        """Fetches what has changed in the store; large files only where `whole` is true."""
        with self._reading():
            self._store.invalidate_cache()
            listed = self._store.find(self._remote(folder), detail=True)
            found = {path[len(self._base) + 1 :]: info for path, info in listed.items()}
            if "" in found:
                raise BadInput(f"{self.url} is a file, not a folder")
            for name, info in found.items():
                if _is_working(name.split("/")) or name.endswith("/"):
                    continue
                if _is_torn(name, found):
                    self._same |= {name: ""} if whole else {}  # so that it is removed
                elif whole or not (large := _large(name)):
                    self._fetch(name, info)
                else:  # a folder with such files is not empty
                    (self.local / large).mkdir(parents=True, exist_ok=True)

    def _fetch(self, name, info):
        path, seen = self.local / name, repr(info)
        if path.exists():
            is_new = self._same.get(name) != _stamp(path)  # and was not uploaded yet
            if is_new or self._seen.get(name) == seen:
                return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        self._store.get_file(self._remote(name), str(temporary))
        if temporary.stat().st_size != info["size"]:
            raise OSError(f"{name} was cut off")
        os.replace(temporary, path)
        self._seen[name], self._same[name] = seen, _stamp(path)

    def take(self, folder: str) -> None:
        """Marks the folder of a run as this command's, and fetches all of it."""
        if self._writes:
            mark = f"process {os.getpid()} on {platform.node()}, {secrets.token_hex(4)}"
            self._marks[folder] = mark.encode()
            with self._writing():
                self._store.pipe_file(self._owner(folder), self._marks[folder])
        self.refresh(folder, whole=True)

    def release(self, folder: str) -> None:
        """Takes the mark away, if it is still this command's."""
        with contextlib.suppress(Exception):  # the work is done, or another failure is under way
            if folder in self._marks and not self.other_owner(folder):
                self._store.rm_file(self._owner(folder))
                del self._marks[folder]

    def forget(self, folder: str) -> None:
        """Removes the mark of a folder that has no other files, as a kill may leave it."""
        if self._writes:
            with self._writing():
                if self._store.exists(self._owner(folder)):
                    self._store.rm_file(self._owner(folder))

    def other_owner(self, folder: str) -> str:
        """Who has taken a run that this command had taken before; "" where nobody has."""
        if folder not in self._marks:
            return ""
        with self._writing():
            try:
                there = self._store.cat_file(self._owner(folder))
            except FileNotFoundError:  # it was taken, and is finished
                return "which has ended since"
        if there == self._marks[folder]:
            return ""
        return cut(there.decode(errors="replace"), 120)

    def publish(self, folder: str) -> None:
        """Makes the store equal to a local folder, but for runs that another command has taken.

        What is gone leaves the store first; an older checkpoint stays until the newer is there.
        """
        if not self._writes:
            return
        taken = {run for run in self._marks if _is_in(run, folder) and self.other_owner(run)}
        there = {name: stamp for name, stamp in self._files(folder) if not _in_any(name, taken)}
        new = sorted((name for name in there if self._same.get(name) != there[name]), key=_rank)
        gone = [n for n in self._same if _is_in(n, folder) and n not in there]
        gone = [name for name in gone if not _in_any(name, taken)]
        gone.sort(key=_rank, reverse=True)
        late = [name for name in gone if _is_superseded(name, there)]
        with self._writing():
            for name in gone:
                if name not in late:
                    self._delete(name)
            for name in new:
                self._store.put_file(str(self.local / name), self._remote(name))
                self._same[name] = there[name]
            for name in late:
                self._delete(name)
        self.failed &= bool(folder or taken)  # nothing is left that is not in the store

    def _delete(self, name):
        with contextlib.suppress(FileNotFoundError):
            self._store.rm_file(self._remote(name))
        del self._same[name]
        self._seen.pop(name, None)

    def _files(self, folder):
        """(name, stamp) of what belongs into the store. Marks checkpoints as whole."""
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
    """Whether a file is only of interest to processes that write: a lock, or half written."""
    of_ours = parts[: parts.index("checkpoints")] if "checkpoints" in parts else parts
    return any(part.startswith(".") for part in of_ours) or any(
        part == ".." or part.endswith(".tmp") or "orbax-checkpoint-tmp" in part for part in parts
    )


def _checkpoint(name):
    """The run's folder and the number of the checkpoint that a file belongs to; else None."""
    match = re.match(r"((?:.*/)?)(checkpoints|kept)/(\d+)/", name)
    return (match[1], int(match[3])) if match else None


def _committed(run, number):
    """The file that comes last of a checkpoint."""
    return f"{run}checkpoints/{number}/{COMMITTED}"


def _is_torn(name, names):
    """Whether a file is of a checkpoint that a kill has kept from being uploaded as a whole."""
    of = _checkpoint(name)
    return of is not None and _committed(*of) not in names


def _large(name):
    """The folder of large files that a file is in; "" of others."""
    match = re.match(rf"((.*/)?({'|'.join(LARGE)}))/", name)
    return match[1] if match else ""


def _is_superseded(name, names):
    """Whether a file is of an older checkpoint than one of `names` of the same run."""
    of = _checkpoint(name)
    others = [] if of is None else filter(None, map(_checkpoint, names))
    return any(run == of[0] and number > of[1] for run, number in others)


def _rank(name):
    """The order of uploads, in which no file comes before what it relies on."""
    of, file = _checkpoint(name), name.rpartition("/")[2]
    if of is None:
        return ORDER.get(file, 0), name
    if name == _committed(*of):
        return 3, name
    return (2 if "checkpoints/" in name else 0), name
