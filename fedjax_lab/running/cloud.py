"""Folders in the cloud: a local working copy, and its upload whenever a run is saved.

An object store cannot append to a file, rename a folder or lock it. So a command works in a local
copy, to which all applies that holds for local folders, and `publish` makes the store equal to it.
The store takes each file as a whole, and they come in such an order that after a kill at any moment
the store holds a run that can be resumed: a file comes before those that rely on it. A checkpoint
counts once its `commit_success.txt` is there, which is also what orbax writes on object stores.

Nothing can be locked there either. A run writes its mark into its folder, and looks for it before
every upload: where another command has written its own since then, the earlier one ends.
"""

import contextlib
import errno
import functools
import json
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from fedjax_lab.errors import MACHINE, BadInput, check_path, cut, quoted

PACKAGES = {  # of each scheme: what fsspec needs for it
    "gs": "gcsfs",
    "s3": "s3fs",
    "az": "adlfs",
    "hf": "huggingface_hub",
    "file": "",
    "memory": "",  # of this process
}
COMMITTED = "commit_success.txt"  # in a checkpoint that was uploaded as a whole
OWNER = ".owner"  # in the folder of a run
LARGE = {"checkpoints", "kept", "profile"}  # folders that are read by nobody but their run
ORDER = {  # in which files are uploaded; 0: others and what clients keep, 2 and 3: checkpoints
    "fingerprint.json": -3,
    "sweep.json": -2,
    "config.json": -1,
    "metrics.jsonl": 1,
    "summary.json": 4,
}

_copies: dict[Path, "_Copy"] = {}  # by their local folders


# Addresses.


def split(address: str | Path | None) -> tuple[str, str] | None:
    """Scheme and place of SCHEME://PLACE, also where `Path` has made one slash of two.

    None for a local path. BadInput for an unknown scheme, or where there is no place.
    """
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*):/(/?)(.*)", str(address or ""), re.DOTALL)
    if match is None or not (match[2] or match[1] in PACKAGES):
        return None
    scheme, place = match[1], match[3].rstrip("/")
    if scheme not in PACKAGES:
        known = ", ".join(f"{name}://" for name in PACKAGES)
        raise BadInput(f"{quoted(str(address))}: there is no {scheme}://, but {known}")
    if not place.strip("/") or (scheme != "file" and place.startswith("/")):
        raise BadInput(f"{quoted(str(address))} names no bucket: {scheme}://BUCKET/FOLDER")
    if {".", ".."} & set(place.split("/")) or "\0" in place:
        raise BadInput(f"{quoted(str(address))} must not have '.', '..' or NUL in it")
    return scheme, place


def check(flag: str, address: str | Path | None) -> None:
    """BadInput where a flag names neither a possible local path nor a place in the cloud."""
    try:
        if split(address) is None:
            check_path(flag, address)
    except BadInput as error:
        raise BadInput(f"{flag}: {error}") if flag not in str(error) else error from None


def check_local(flag: str, path: str | Path | None) -> None:
    """BadInput where a flag that takes local paths alone names a place in the cloud."""
    if split(path) is not None:
        raise BadInput(f"{flag} must be a local path, got {cut(str(path), 80)}")


def address(path: Path) -> str:
    """Where the user finds a file or folder: SCHEME://PLACE for one of a working copy."""
    copy, name = _place(path)
    return str(path) if copy is None else f"{copy.url}/{name}".rstrip("/")


def named(text: str) -> str:
    """The text, with the addresses of working copies in place of their local folders."""
    for local in sorted(_copies, key=lambda path: -len(str(path))):
        text = text.replace(str(local), _copies[local].url)
    return text


# Working copies.


@contextlib.contextmanager
def staged(place: str | Path | None, writes: bool = True) -> Iterator[Any]:
    """Gives the local folder that stands for a place: a new working copy, if that is in the cloud.

    Of a copy the large files are left out until `take` asks for them. At the end of the context
    what is new in it is uploaded, and it is removed, unless an upload has failed.

    Args:
      place: a path, SCHEME://PLACE, or None, which is given back.
      writes: whether anything is uploaded.

    Raises:
      BadInput: the place cannot be read, or its scheme needs a package that is not installed.
      OSError: something could not be uploaded.
    """
    parts = split(place)
    if parts is None:
        yield None if place is None else Path(place)
        return
    local = Path(_root(), *parts[0:1], *filter(None, parts[1].split("/")))
    if local in _copies:
        yield local
        return
    copy = _copies[local] = _Copy(*parts, local, writes)
    try:
        copy.refresh("")
        yield local
        copy.publish("")
    except BadInput as error:
        error.args = (named(str(error)),)
        raise
    finally:
        del _copies[local]
        copy.remove()


@contextlib.contextmanager
def read(places: Sequence[str | Path]) -> Iterator[list[Path]]:
    """The local folders that stand for places that are only read."""
    with contextlib.ExitStack() as until_the_end:
        yield [until_the_end.enter_context(staged(place, writes=False)) for place in places]


def take(path: Path) -> None:
    """Makes this command the one that writes in a run's folder, and fetches all of its files.

    Like what follows, for a path that is not in a working copy it does nothing.
    """
    copy, name = _place(path)
    if copy is not None:
        copy.take(name)


def publish(path: Path) -> None:
    """Uploads what has changed in a folder. OSError where that fails.

    The folder of a run that another command has taken is left alone.
    """
    copy, name = _place(path)
    if copy is not None:
        copy.publish(name)


def check_owner(path: Path) -> None:
    """BadInput where another command has taken the run's folder."""
    copy, name = _place(path)
    if copy is not None and (other := copy.other_owner(name)):
        raise BadInput(
            f"{address(path)} was taken by another command, {other}; this one has stopped writing"
        )


def release(path: Path) -> None:
    """Ends what `take` has begun."""
    copy, name = _place(path)
    if copy is not None:
        copy.release(name)


def refresh(path: Path) -> None:
    """Fetches what others have changed in a folder, but for large files."""
    copy, name = _place(path)
    if copy is not None:
        copy.refresh(name)


def is_remote(path: Path | None) -> bool:
    """Whether the path is in a working copy."""
    return path is not None and _place(path)[0] is not None


def _place(path):
    """The working copy that a path is in, and its name there; None and "" elsewhere."""
    for folder in (path, *path.parents):
        if folder in _copies:
            name = path.relative_to(folder).as_posix()
            return _copies[folder], "" if name == "." else name
    return None, ""


@functools.cache
def _root():
    """The folder of this process for its working copies."""
    return os.path.realpath(tempfile.mkdtemp(prefix="fedjax_lab-"))


class _Copy:
    """A local folder and the place in a store that it is a copy of. Names are relative to both."""

    def __init__(self, scheme, place, local, writes):
        self.url, self.local, self._writes = f"{scheme}://{place}", local, writes
        self._seen: dict[str, str] = {}  # what the store says of files that were fetched
        self._same: dict[str, str] = {}  # the stamps of local files as they are in the store
        self._marks: dict[str, bytes] = {}  # of the runs that were taken
        self._failed = False
        options = {"auto_mkdir": True} if scheme == "file" else {}
        try:
            import fsspec  # not needed by those who stay on the disk

            self._fs, root = fsspec.core.url_to_fs(self.url, **options)
        except ImportError as error:
            package = PACKAGES[scheme]
            raise BadInput(
                f"{self.url} needs the package {package}: pip install {package}"
            ) from error
        except Exception as error:  # wrong credentials: each store has errors of its own
            raise BadInput(f"{self.url} cannot be used: {_reason(error)}") from error
        self._base = root.rstrip("/")

    def refresh(self, folder, whole=False):
        """Fetches what has changed in the store; large files only where `whole` is true."""
        with self._reading():
            self._fs.invalidate_cache()
            listed = self._fs.find(self._remote(folder), detail=True)
            found = {path[len(self._base) + 1 :]: info for path, info in listed.items()}
            if "" in found:
                raise BadInput(f"{self.url} is a file, not a folder")
            for name, info in found.items():
                if _is_working(PurePosixPath(name).parts) or name.endswith("/"):
                    continue
                path = self.local / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if _is_torn(name, found):
                    self._same[name] = ""  # so that it is removed
                elif whole or LARGE.isdisjoint(path.relative_to(self.local).parts[:-1]):
                    self._fetch(name, info)

    def _fetch(self, name, info):
        path, seen = self.local / name, repr(info)
        if self._seen.get(name) == seen and path.exists():
            return
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        self._fs.get_file(self._remote(name), str(temporary))
        if temporary.stat().st_size != info["size"]:
            raise OSError(f"{name} was cut off")
        os.replace(temporary, path)
        self._seen[name], self._same[name] = seen, _stamp(path)

    def take(self, folder):
        if self._writes:
            mark = {"process": os.getpid(), "host": platform.node(), "token": secrets.token_hex(8)}
            self._marks[folder] = json.dumps(mark).encode()
            with self._writing():
                self._fs.pipe_file(self._owner(folder), self._marks[folder])
        self.refresh(folder, whole=True)

    def release(self, folder):
        with contextlib.suppress(Exception):  # the work is done, or another failure is under way
            if folder in self._marks and not self.other_owner(folder):
                self._fs.rm_file(self._owner(folder))
                del self._marks[folder]

    def other_owner(self, folder):
        """Who has taken a run that this command had taken before; "" where nobody has."""
        if folder not in self._marks:
            return ""
        with self._writing():
            try:
                there = self._fs.cat_file(self._owner(folder))
            except FileNotFoundError:  # it was taken, and is finished
                return "which has ended"
        if there == self._marks[folder]:
            return ""
        return cut(" ".join(there.decode(errors="replace").split()), 120)

    def publish(self, folder):
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
                self._fs.put_file(str(self.local / name), self._remote(name))
                self._same[name] = there[name]
            for name in late:
                self._delete(name)

    def _delete(self, name):
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._remote(name))
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

    def remove(self):
        """Removes the working copy, unless it has what could not be uploaded."""
        if not self._failed:
            shutil.rmtree(self.local, ignore_errors=True)
            with contextlib.suppress(OSError):  # others have copies in the same folders
                for path in self.local.parents[: len(self.local.relative_to(_root()).parts)]:
                    path.rmdir()
                _root.cache_clear()

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
            self._failed = True
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
    hidden = parts[: parts.index("checkpoints")] if "checkpoints" in parts else parts
    return any(part.startswith(".") for part in hidden) or any(
        part.endswith(".tmp") or "orbax-checkpoint-tmp" in part for part in parts
    )


def _checkpoint(name):
    """The run's folder and the number of the checkpoint that a file belongs to; else None."""
    match = re.match(r"(.*?)(checkpoints|kept)/(\d+)/", name)
    return (match[1], int(match[3])) if match else None


def _committed(run, number):
    """The file that comes last of a checkpoint."""
    return f"{run}checkpoints/{number}/{COMMITTED}"


def _is_torn(name, names):
    """Whether a file is of a checkpoint that a kill has kept from being uploaded as a whole."""
    of = _checkpoint(name)
    return of is not None and _committed(*of) not in names


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
