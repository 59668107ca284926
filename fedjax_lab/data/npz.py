"""Arrays of an .npz file, whose claims are checked before anything of them is read."""

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
    """What the file calls its members, without the suffix of arrays; an error if it is no zip."""
    with safe.opened(path) as file, zipfile.ZipFile(file) as members:
        return [name.removesuffix(SUFFIX) for name in members.namelist()]


def read(
    path: Path, keys: Iterable[str], remedy: str, problem: str = "cannot be read"
) -> dict[str, np.ndarray]:
    """These arrays of the file, by name.

    Raises BadInput for one that is damaged, holds Python objects, or claims more than is there or
    than memory can hold, and KeyError for one that is not there.
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
    """The bytes of an array, by its header; ValueError where its member cannot hold them."""
    version = npy.read_magic(content)
    if version not in HEADERS:
        raise ValueError(f"{key} holds records, not numbers or strings")
    shape, _, dtype = HEADERS[version](content)
    if dtype.hasobject:
        raise ValueError(f"{key} holds objects, not numbers or strings")
    due = math.prod(shape) * max(1, dtype.itemsize)  # of empty strings too, which are no bytes
    if min(shape, default=0) < 0 or due > member.file_size - content.tell():
        raise ValueError(f"{key} claims {due} bytes, but its member has {member.file_size}")
    if member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        safe.check_claim(member.file_size, member.compress_size)
    return due
