"""Folders in the cloud: a local working copy that is uploaded whenever a run is saved.

An object store cannot append to a file, rename a folder or lock it. A command therefore works in a
local copy, with the same guarantees as in any local folder, and `publish` synchronizes the store
with it (see `working_copy.py`). Files that were not published when a process is killed are lost; a
run publishes with every checkpoint. The functions do nothing for a path outside a working copy.

A run writes a mark into its folder in the store and checks it before every upload. If another
command has written its own mark in the meantime, it owns the run, and the earlier command ends.
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

PACKAGES = {  # by scheme: the package that fsspec needs for it
    "gs": "gcsfs",
    "s3": "s3fs",
    "az": "adlfs",
    "hf": "huggingface_hub",
    "file": "",
    "memory": "",  # the memory of this process
}
ROOT = "fedjax_lab-"  # prefix of the temporary folders that hold working copies
_copies: dict[Path, WorkingCopy] = {}  # by local folder


# Addresses.


def split(address: str | Path | None) -> tuple[str, str] | None:
    """Scheme and place of SCHEME://PLACE, also if `Path` has merged the two slashes into one.

    Returns None for a local path. Raises BadInput for an unknown scheme or an invalid place.
    """
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*):/(/?)(.*)", str(address or ""), re.DOTALL)
    if match is None or not (match[2] or match[1] in PACKAGES):
        return None
    scheme, place = match[1], match[3].rstrip("/")
    if scheme not in PACKAGES:
        valid = ", ".join(f"{name}://" for name in PACKAGES)
        raise BadInput(f"{quoted(str(address))}: unknown scheme {scheme}://; valid: {valid}")
    if not place.strip("/") or (scheme != "file" and place.startswith("/")):
        raise BadInput(f"{quoted(str(address))} names no bucket: {scheme}://BUCKET/FOLDER")
    if {".", ".."} & set(place.split("/")) or "\0" in place:
        raise BadInput(f"{quoted(str(address))} must not contain '.', '..' or NUL")
    return scheme, f"/{place.lstrip('/')}" if scheme == "file" else place


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
    """The user's name for a file or folder: SCHEME://PLACE for one in a working copy."""
    copy, name = _place(path)
    return str(path) if copy is None else f"{copy.url}/{name}".rstrip("/")


def named(text: str) -> str:
    """The text, with the local folders of working copies replaced by their addresses."""
    for local in sorted(_copies, key=lambda path: -len(str(path))):
        text = text.replace(str(local), _copies[local].url)
    return text


# Working copies.


@contextlib.contextmanager
def staged(place: str | Path | None, writes: bool = True) -> Iterator[Any]:
    """Yields a local folder for a place: for a place in the cloud, a new working copy.

    A working copy has no large files until `take` fetches them. At the end of the context, new
    files are uploaded and the copy is removed, unless an upload has failed.

    Args:
      place: a path, SCHEME://PLACE, or None, which is returned unchanged.
      writes: whether to upload new files.

    Raises:
      BadInput: the place cannot be read, or its scheme needs a package that is not installed.
      OSError: an upload failed.
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
    """Yields local folders for places that are only read, see `staged`."""
    with contextlib.ExitStack() as until_the_end:
        yield [until_the_end.enter_context(staged(place, writes=False)) for place in places]


def take(path: Path) -> None:
    """Makes this command the owner of a run's folder, and fetches all of its files."""
    copy, name = _place(path)
    if copy is not None:
        copy.take(name)


def publish(path: Path) -> None:
    """Uploads the changes in a folder, except runs that another command has taken over.

    Raises OSError if an upload fails.
    """
    copy, name = _place(path)
    if copy is not None:
        copy.publish(name)


def check_owner(path: Path) -> None:
    """Raises BadInput if another command has taken over the run's folder."""
    copy, name = _place(path)
    if copy is not None and (other := copy.other_owner(name)):
        raise BadInput(
            f"{address(path)} was taken over by another command, {other}; this command has stopped"
            " writing to it"
        )


def release(path: Path) -> None:
    """Gives up the ownership that `take` has acquired."""
    copy, name = _place(path)
    if copy is not None:
        copy.release(name)


def forget(path: Path) -> None:
    """Removes the mark that `take` wrote for a folder that no longer exists, as after a kill."""
    copy, name = _place(path)
    if copy is not None:
        copy.forget(name)


def refresh(path: Path) -> None:
    """Fetches changes that other commands made in a folder, except large files."""
    copy, name = _place(path)
    if copy is not None:
        copy.refresh(name)


def is_remote(path: Path | None) -> bool:
    """Whether the path is in a working copy."""
    return path is not None and _place(path)[0] is not None


def _place(path):
    """The working copy that holds a path, and its name in the copy; (None, "") if there is none."""
    for folder in (path, *path.parents):
        if folder in _copies:
            name = path.relative_to(folder).as_posix()
            return _copies[folder], "" if name == "." else name
    return None, ""


@functools.cache
def _root():
    """This process's folder for working copies."""
    return os.path.realpath(tempfile.mkdtemp(prefix=ROOT))


def _open(scheme, place, local, writes):
    import fsspec  # not needed for local folders

    url, options = f"{scheme}://{place}", {"auto_mkdir": True} if scheme == "file" else {}
    try:
        store, base = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        package = PACKAGES[scheme]
        raise BadInput(f"{url} needs the package {package}: pip install {package}") from error
    except Exception as error:  # such as missing credentials; each store has its own error types
        raise BadInput(f"{url} cannot be used: {error} ({type(error).__name__})") from error
    return WorkingCopy(url, store, base.rstrip("/"), local, writes)


def _remove(copy):
    """Removes a working copy, unless it holds files that could not be uploaded."""
    if copy.failed:
        _root.cache_clear()  # so that the next copy uses another folder
        return
    shutil.rmtree(copy.local, ignore_errors=True)
    with contextlib.suppress(OSError):  # a parent folder also holds other copies
        for path in copy.local.parents:
            with contextlib.suppress(FileNotFoundError):  # the copy had no files
                path.rmdir()
            if path.name.startswith(ROOT):
                _root.cache_clear()
                return
