"""Folders in the cloud: a command works in a local copy, which is uploaded with every checkpoint.

An object store cannot append to a file, rename a folder or lock it. The local copy has the same
guarantees as any local folder, and `publish` uploads its changed files in the order of `PHASES`,
so that the store holds a run that can be resumed at any moment. The functions do nothing for a path
outside such a copy.

The owner of a run has its mark in the run's folder in the store, and compares it before every
upload. If another command has written its own mark in the meantime, the earlier owner ends.
"""

import contextlib
import errno
import functools
import itertools
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedjax_lab.errors import MACHINE, BadInput, check_path, cut, quoted

SCHEMES = ("gs", "s3", "az", "hf", "file", "memory")  # fsspec names the package that one needs
OWNER = ".owner"  # the mark in the folder of a run
COMPLETE = "_CHECKPOINT_METADATA"  # of orbax; a checkpoint without it was not uploaded as a whole
LARGE = ("checkpoints", "kept", "profile")  # folders that only their own run reads
PHASES = {  # the order of uploads; 3: other files and clients' state; 5: checkpoints
    "sweep.json": 0,
    "fingerprint.json": 1,
    "config.json": 2,
    "metrics.jsonl": 4,
    COMPLETE: 6,
    "summary.json": 7,
}

_copies: dict[Path, "_Copy"] = {}  # by local folder


# Addresses.


def split(address: str | Path | None) -> tuple[str, str] | None:
    """Scheme and place of SCHEME://PLACE, also if `Path` has merged the two slashes into one.

    Returns None for a local path. Raises BadInput for an unknown scheme or an invalid place.
    """
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*):/(/?)(.*)", str(address or ""), re.DOTALL)
    if match is None or not (match[2] or match[1] in SCHEMES):
        return None
    scheme, place = match[1], match[3].rstrip("/")
    if scheme not in SCHEMES:
        valid = ", ".join(f"{name}://" for name in SCHEMES)
        raise BadInput(f"{quoted(str(address))}: unknown scheme {scheme}://; valid: {valid}")
    place = place.lstrip("/") if scheme == "file" else place
    if {"", ".", ".."} & set(place.split("/")) or "\0" in place:
        raise BadInput(f"{quoted(str(address))} is not of the form {scheme}://BUCKET/FOLDER")
    return scheme, f"/{place}" if scheme == "file" else place


def check(flag: str, address: str | Path | None) -> None:
    """Raises BadInput unless a flag's value is a possible local path or a place in the cloud."""
    try:
        if split(address) is None:
            check_path(flag, address)
    except BadInput as error:
        raise BadInput(f"{flag}: {error}") if flag not in str(error) else error from None


def check_local(flag: str, path: str | Path | None) -> None:
    """Raises BadInput if a flag that only takes local paths names a place in the cloud."""
    if split(path) is not None:
        raise BadInput(f"{flag} must be a local path, got {cut(str(path), 80)}")


def address(path: Path) -> str:
    """The user's name for a file or folder: SCHEME://PLACE for one in a copy."""
    return named(str(path))


def named(text: str) -> str:
    """The text, with the local folders of copies replaced by their addresses."""
    for local, copy in sorted(_copies.items(), reverse=True):  # inner folders first
        text = text.replace(str(local), copy.url)
    return text


# Copies.


@contextlib.contextmanager
def staged(place: str | Path | None, writes: bool = True) -> Iterator[Any]:
    """Yields a local folder for a place: for a place in the cloud, a new copy of its small files.

    At the end of the context, changed files are uploaded and the copy is removed, unless an upload
    has failed.

    Args:
      place: a path, SCHEME://PLACE, or None, which is returned unchanged.
      writes: whether to upload changed files.

    Raises:
      BadInput: the place cannot be read, or its scheme needs a package that is not installed.
      OSError: an upload failed.
    """
    parts = split(place)
    if parts is None:
        yield None if place is None else Path(place)
        return
    local = Path(_root(), parts[0], parts[1].lstrip("/"))
    outer, _ = _place(local)
    if outer is not None and (outer.writes or not writes):
        yield local
        return
    copy = _copies[local] = _Copy(*parts, local, writes)
    try:
        fetch(local)
        yield local
        publish(local)
        copy.failed = False
    except BadInput as error:
        error.args = (named(str(error)),)
        raise
    finally:
        del _copies[local]
        _remove(copy)


@contextlib.contextmanager
def read(places: Sequence[str | Path]) -> Iterator[list[Path]]:
    """Yields local folders for places that are only read, see `staged`."""
    with contextlib.ExitStack() as until_the_end:
        yield [until_the_end.enter_context(staged(place, writes=False)) for place in places]


def fetch(path: Path, whole: bool = False) -> None:
    """Fetches changed files of a folder from the store; large files only if `whole` is true."""
    copy, folder = _place(path)
    if copy is None:
        return
    with copy.using():
        copy.store.invalidate_cache()
        files = copy.store.find(copy.remote(folder), detail=True)
        stored = {place[len(copy.base) + 1 :]: info for place, info in files.items()}
        if "" in stored:
            raise BadInput(f"{copy.url} is a file, not a folder")
        torn = {name for name in stored if _is_torn(name, stored)}
        names = [n for n in stored if n not in torn and (whole or not _is_large(n))]
        names = [name for name in names if copy.lacks(name, stored[name])]
        new = [copy.local / f"{name}.tmp" for name in names]
        copy.store.get([*map(copy.remote, names)], [*map(str, new)])
        for file, name in zip(new, names, strict=True):
            if file.stat().st_size != stored[name]["size"]:
                raise OSError(f"{name} was truncated")
            file.replace(copy.local / name)
            copy.same[name] = _stamp(copy.local / name), repr(stored[name])
    if folder in copy.marks:
        copy.same |= dict.fromkeys(torn, ("", ""))  # so that the next upload removes them


def publish(path: Path) -> None:
    """Uploads changed files of a folder and removes others, old checkpoints after new ones.

    Raises OSError if an upload fails, and BadInput if another command has taken over an owned run,
    which is left to it from then on.
    """
    copy, folder = _place(path)
    if copy is None or not copy.writes:
        return
    _check_owners(copy, folder)
    paths = sorted(path for path in (copy.local / folder).rglob("*") if path.is_file())
    local = {path.relative_to(copy.local).as_posix(): _stamp(path) for path in paths}
    local = {n: at for n, at in local.items() if not _is_working(n) and copy.may_write(n)}
    new = sorted((name for name in local if copy.stamp(name) != local[name]), key=_phase)
    gone = [n for n in copy.same if n not in local and _is_in(n, folder) and copy.may_write(n)]
    gone.sort(key=_phase, reverse=True)
    with copy.using(to_write=True):
        copy.delete(name for name in gone if not _checkpoint(name))
        for names in (list(names) for _, names in itertools.groupby(new, _phase)):
            copy.store.put([str(copy.local / n) for n in names], [*map(copy.remote, names)])
            copy.same |= {name: (local[name], "") for name in names}
        copy.delete(name for name in gone if _checkpoint(name))


@contextlib.contextmanager
def owned(path: Path) -> Iterator[None]:
    """Makes this command the owner of a run's folder, and fetches all its files.

    Raises BadInput if another command has taken over the run from this one.
    """
    copy, run = _place(path)
    if copy is None or run in copy.marks:
        yield
        return
    if run in copy.lost:
        raise BadInput(f"{address(path)} was taken over by another command")
    mark = f"process {os.getpid()} on {platform.node()}, {secrets.token_hex(4)}".encode()
    try:
        with copy.using(to_write=True):
            copy.store.pipe_file(copy.remote(run, OWNER), mark)
        copy.marks[run] = mark
        fetch(path, whole=True)
        yield
    finally:
        with contextlib.suppress(Exception):  # the work is done or has already failed
            if copy.marks.pop(run, None) == copy.mark(run):
                copy.store.rm_file(copy.remote(run, OWNER))


def _check_owners(copy, folder):
    """Raises BadInput if another command has taken over a run in the folder."""
    for run in [run for run in copy.marks if _is_in(run, folder) or _is_in(folder, run)]:
        with copy.using(to_write=True):
            mark = copy.mark(run)
        if mark != copy.marks[run]:
            del copy.marks[run]
            copy.lost.add(run)
            by = cut(mark.decode(errors="replace"), 120)
            raise BadInput(
                f"{address(copy.local / run)} was taken over by another command, {by}; this command"
                " has stopped writing to it"
            )


def is_remote(path: Path | None) -> bool:
    """Whether the path is in a copy."""
    return path is not None and _place(path)[0] is not None


def is_whole(path: Path) -> bool:
    """Whether the path is the whole of a copy, which lacks the folders beside it."""
    return path in _copies


def beside(path: Path, ending: str) -> list[str]:
    """The addresses of the folders beside the whole of a copy whose names begin like its own.

    ending: what follows in these names.
    """
    copy = _copies[path]
    with copy.using():
        copy.store.invalidate_cache()
        listed = copy.store.ls(copy.base.rpartition("/")[0], detail=False)
    names = sorted(place.rstrip("/") for place in listed)
    return [copy.url + n[len(copy.base) :] for n in names if n.startswith(copy.base + ending)]


@functools.cache
def _root():
    """This process's folder for copies."""
    return os.path.realpath(tempfile.mkdtemp(prefix="fedjax_lab-"))


def _remove(copy):
    """Removes a copy, unless it holds files that could not be uploaded."""
    if not copy.failed:
        shutil.rmtree(copy.local, ignore_errors=True)
        if not _copies:
            shutil.rmtree(_root(), ignore_errors=True)
    if copy.failed or not _copies:
        _root.cache_clear()


def _place(path):
    """The copy that holds a path, and its name in the copy; (None, "") if there is none."""
    for folder in (path, *path.parents):
        if folder in _copies:
            name = path.relative_to(folder).as_posix()
            return _copies[folder], "" if name == "." else name
    return None, ""


class _Copy:
    """A local folder and the place in the cloud that it mirrors. Names are relative to both."""

    def __init__(self, scheme: str, place: str, local: Path, writes: bool):
        import fsspec  # not needed for local folders

        self.url, self.local, self.writes = f"{scheme}://{place}", local, writes
        self.failed = False  # whether an upload has failed
        self.marks: dict[str, bytes] = {}  # of the runs that this command owns
        self.lost: set[str] = set()  # the runs that other commands have taken over
        self.same: dict[str, tuple[str, str]] = {}
        # of each file that is the same in both: its local stamp, and if fetched, the store's
        try:
            options = {"auto_mkdir": True} if scheme == "file" else {}
            self.store, base = fsspec.core.url_to_fs(self.url, **options)
        except Exception as error:  # such as a missing package; each store has its own error types
            raise BadInput(f"{self.url} cannot be used: {_reason(error)}") from error
        self.base = base.rstrip("/")

    def remote(self, *names):
        return "/".join(filter(None, (self.base, *names)))

    def mark(self, run):
        try:
            return self.store.cat_file(self.remote(run, OWNER))
        except FileNotFoundError:  # another command took the run over and removed its own mark
            return b"which has ended since"

    def may_write(self, name):
        return not any(_is_in(name, run) for run in self.lost)

    def stamp(self, name):
        return self.same.get(name, ("", ""))[0]

    def lacks(self, name, info):
        """Whether the store has other content than the local file, which is not a newer one."""
        path = self.local / name
        if _is_working(name) or not path.exists():
            return not _is_working(name)
        return self.stamp(name) == _stamp(path) and self.same[name][1] != repr(info)

    def delete(self, names):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self.store.rm_file(self.remote(name))
            del self.same[name]

    @contextlib.contextmanager
    def using(self, to_write=False):
        """Turns any error of the store into one line."""
        try:
            yield
        except Exception as error:
            if to_write:
                self.failed = True
                where = f"{self.url} cannot be written: {_reason(error)}; all files are in"
                raise OSError(errno.EIO, f"{where} {self.local}") from error
            if isinstance(error, (BadInput, MemoryError)) or getattr(error, "errno", 0) in MACHINE:
                raise
            raise BadInput(f"{self.url} cannot be read: {_reason(error)}") from error


def _reason(error):
    return cut(f"{' '.join(str(error).split())} ({type(error).__name__})", 200)


def _stamp(path):
    stat = path.stat()
    return f"{stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"


def _is_in(name, folder):
    return not folder or name == folder or name.startswith(f"{folder}/")


def _is_working(name):
    """Whether a name is that of a lock, a hidden or unfinished file or a folder, never copied."""
    hidden = re.search(r"(^|/)\.", name.partition("checkpoints/")[0])
    return hidden is not None or re.search(r"\.tmp(/|$)|orbax-checkpoint-tmp|/$", name) is not None


def _is_large(name):
    return not {*name.split("/")[:-1]}.isdisjoint(LARGE)


def _checkpoint(name):
    """The folders of the run and of the checkpoint that a file belongs to, or None."""
    return re.match(r"((?:.*/)?)(checkpoints|kept)/(\d+)/", name)


def _is_torn(name, stored):
    """Whether a file belongs to a checkpoint whose upload was cut short by a kill."""
    of = _checkpoint(name)
    return of is not None and f"{of[1]}checkpoints/{of[3]}/{COMPLETE}" not in stored


def _phase(name):
    of = _checkpoint(name)
    others = 5 if of is not None and of[2] == "checkpoints" else 3
    return PHASES.get(name.rpartition("/")[2], others)
