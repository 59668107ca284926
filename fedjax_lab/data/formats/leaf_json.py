"""Reads the users in LEAF's JSON files.

A file has a list `users` of names, and an object `user_data` that maps each name to an object with
the lists `x` and `y`: Caldas et al. 2018, arXiv:1812.01097, https://github.com/TalwalkarLab/leaf.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.safe import Fault
from fedjax_lab.errors import quoted

PARSED = 10  # bytes of Python's objects for a byte of JSON, measured with texts of Reddit


class User(NamedTuple):
    """The examples x of a user and their labels y, equally many, as in the file."""

    file: Path
    name: str
    x: list
    y: list


def has_files(folder: Path) -> bool:
    """Whether a folder has JSON files."""
    return bool(safe.glob(folder, "*.json"))


def users_in(folder: Path) -> Iterator[User]:
    """The users in all JSON files of a folder, sorted by file name.

    Raises a Fault if a file is malformed or a user occurs twice.
    """
    files = safe.glob(folder, "*.json")
    if not files:
        raise Fault(f"{folder} has no files *.json")
    names = set()
    for file in files:
        for user in users_of(file):
            if user.name in names:
                raise _twice(file, user.name)
            names.add(user.name)
            yield user


def users_of(file: Path) -> Iterator[User]:
    """The users that a file lists, in the order of `user_data`.

    Entries of `user_data` that `users` does not list are left out: LEAF's split_data.py leaves
    empty ones.
    """
    with safe.reading(file, problem="cannot be read as JSON"):
        text = safe.content(file)
        safe.check_memory(PARSED // 2 * len(text))  # which must be free twice
        content = json.loads(text, object_pairs_hook=_object)
    users, given = _members(content, "users", "user_data")
    if not isinstance(users, list) or not isinstance(given, dict):
        raise Fault(f"{file} has no list `users` and object `user_data`")
    for name in users:
        x, y = _members(given.get(name) if isinstance(name, str) else None, "x", "y")
        if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y)):
            raise Fault(f"{file}: user {quoted(name, 60)} has no lists x and y of equal length")
    listed = set(users)
    if len(listed) < len(users):
        raise _twice(file, next(name for name in users if users.count(name) > 1))
    for name in filter(listed.__contains__, given):
        yield User(file, plain(name), given[name]["x"], given[name]["y"])


def _members(value: Any, *keys: str) -> list[Any]:
    return [value.get(key) if isinstance(value, dict) else None for key in keys]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; rows x of numbers are stored as arrays, in a quarter of the memory."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in made if names.count(name) > 1)
        raise ValueError(f"the key {quoted(twice, 60)} occurs twice")
    with contextlib.suppress(ValueError, TypeError, OverflowError, IndexError, KeyError):
        if isinstance(made["x"][0][0], float):
            made["x"] = list(np.array(made["x"], np.float64))
    return made


def plain(text: str) -> str:
    """The text with ? in place of each unpaired surrogate, which JSON can hold but UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def _twice(file: Path, name: str) -> Fault:
    return Fault(f"{file}: user {quoted(name, 60)} occurs twice")
