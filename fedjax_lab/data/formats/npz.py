"""Reads arrays of an .npz file; the sizes in its headers are checked before the content is read."""

import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from fedjax_lab.data import safe

SUFFIX = ".npy"
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def names(path: Path) -> list[str]:
    """The names of the members, without the suffix .npy; raises an error if it is not a zip."""
    with safe.opened(path) as file, zipfile.ZipFile(file) as members:
        return [name.removesuffix(SUFFIX) for name in members.namelist()]


def read(
    path: Path, keys: Iterable[str], remedy: str = "", problem: str = "cannot be read"
) -> dict[str, np.ndarray]:
    """The arrays of these names.

    Raises BadInput if an array is damaged, holds Python objects, or declares a size that the file
    or the memory cannot hold. Raises KeyError if an array does not exist.
    """
    made, total = {}, 0
    with safe.opened(path) as file, zipfile.ZipFile(file) as members:
        infos = {key: members.getinfo(key + SUFFIX) for key in keys}
        for key, member in infos.items():
            with safe.reading(path, remedy, problem, key), members.open(member) as content:
                total += _claimed(key, content, member)
                safe.check_memory(total)
        for key, member in infos.items():
            with safe.reading(path, remedy, problem, key), members.open(member) as content:
                made[key] = npy.read_array(content, allow_pickle=False)
    return made


def _claimed(key: str, content: IO[bytes], member: zipfile.ZipInfo) -> int:
    """The size in bytes of an array by its header. Raises ValueError if the member is smaller."""
    version = npy.read_magic(content)
    if version not in HEADERS:
        raise ValueError(f"{key} holds records, not numbers or strings")
    shape, _, dtype = HEADERS[version](content)
    if dtype.hasobject:
        raise ValueError(f"{key} holds objects, not numbers or strings")
    due = math.prod(shape) * max(1, dtype.itemsize)  # empty strings have 0 bytes, but count as 1
    if min(shape, default=0) < 0 or due > member.file_size - content.tell():
        raise ValueError(f"{key} declares {due} bytes, but its member has {member.file_size}")
    safe.check_claim(member.file_size, member.compress_size)
    return due
