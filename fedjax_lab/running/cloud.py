"""Folders in the cloud: a local working copy, and its upload whenever a run is saved.

An object store cannot append to a file, rename a folder or lock it. So a command works in a local
copy, for which all holds that is promised for local folders, and `publish` makes the store equal to
it (see `working_copy.py`). What was not published when a process is killed is lost: a run publishes
with every checkpoint. The functions do nothing for a path that is not in a working copy.

A run writes a mark into its folder in the store, and looks for it before every upload. Where
another command has written its own since then, the earlier one ends: the later has taken the run.
"""

import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedjax_lab.errors import BadInput, check_path, cut, quoted
from fedjax_lab.running.working_copy import WorkingCopy

PACKAGES = {  # of each scheme: what fsspec needs for it
    "gs": "gcsfs",
    "s3": "s3fs",
    "az": "adlfs",
    "hf": "huggingface_hub",
    "file": "",
    "memory": "",  # of this process
}
ROOT = "fedjax_lab-"  # of the names of folders for working copies
_copies: dict[Path, WorkingCopy] = {}  # by their local folders


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
    return scheme, f"/{place.lstrip('/')}" if scheme == "file" else place


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
    local = Path(_root(), parts[0], *filter(None, parts[1].split("/")))
    if local in _copies:
        yield local
        return
    copy = _copies[local] = _open(*parts, local, writes)
    try:
        copy.refresh("")
        yield local
        copy.publish("")
    except BadInput as error:
        error.args = (named(str(error)),)
        raise
    finally:
        _remove(_copies.pop(local))


@contextlib.contextmanager
def read(places: Sequence[str | Path]) -> Iterator[list[Path]]:
    """The local folders that stand for places that are only read."""
    with contextlib.ExitStack() as until_the_end:
        yield [until_the_end.enter_context(staged(place, writes=False)) for place in places]


def take(path: Path) -> None:
    """Makes this command the one that writes in a run's folder, and fetches all of its files."""
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


def forget(path: Path) -> None:
    """Removes what `take` has left of a folder that is not there any more, after a kill."""
    copy, name = _place(path)
    if copy is not None:
        copy.forget(name)


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
    return os.path.realpath(tempfile.mkdtemp(prefix=ROOT))


def _open(scheme, place, local, writes):
    import fsspec  # not needed by those who stay on the disk

    url, options = f"{scheme}://{place}", {"auto_mkdir": True} if scheme == "file" else {}
    try:
        store, base = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        package = PACKAGES[scheme]
        raise BadInput(f"{url} needs the package {package}: pip install {package}") from error
    except Exception as error:  # about credentials: each store has errors of its own
        raise BadInput(f"{url} cannot be used: {error} ({type(error).__name__})") from error
    return WorkingCopy(url, store, base.rstrip("/"), local, writes)


def _remove(copy):
    """Removes a working copy, unless it has what could not be uploaded."""
    if copy.failed:
        _root.cache_clear()  # so that the next copy does not find it
        return
    shutil.rmtree(copy.local, ignore_errors=True)
    with contextlib.suppress(OSError):  # other copies are in the same folders
        for path in copy.local.parents:
            with contextlib.suppress(FileNotFoundError):  # nothing was in the copy
                path.rmdir()
            if path.name.startswith(ROOT):
                _root.cache_clear()
                return
