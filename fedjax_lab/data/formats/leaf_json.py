"""Reads LEAF's JSON files user by user, because the numbers of all users may not fit in memory.

A file has a list `users` of names, and an object `user_data` that maps each name to an object with
the lists `x` and `y`: Caldas et al. 2018, arXiv:1812.01097, https://github.com/TalwalkarLab/leaf.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput, quoted

DECODER = json.JSONDecoder()
BLANK = re.compile(r"[ \t\n\r]*")


class User(NamedTuple):
    """The examples x of a user and their labels y, equally many, as in the file."""

    file: Path
    name: str
    x: list
    y: list


def has_files(folder: Path) -> bool:
    """Whether a folder has JSON files."""
    return bool(safe.glob(folder, "*.json"))


def users_in(folder: Path, remedy: str) -> Iterator[User]:
    """The users in all JSON files of a folder, sorted by file name.

    Raises BadInput if a file is malformed or a user occurs twice.
    """
    files = safe.glob(folder, "*.json")
    if not files:
        raise BadInput(f"{folder} has no files *.json: {remedy}")
    names = set()
    for file in files:
        for user in users_of(file, remedy):
            if user.name in names:
                raise _twice(file, user.name, remedy)
            names.add(user.name)
            yield user


def users_of(file: Path, remedy: str) -> Iterator[User]:
    """The users that a file lists, in the order of `user_data`; decoded one at a time.

    Entries of `user_data` that `users` does not list are left out: LEAF's split_data.py leaves
    empty ones.
    """
    with safe.reading(file, remedy, "cannot be read as JSON"):
        text = _text(file)
        users = _listed(text)
        if users is None:
            raise BadInput(f"{file} has no list `users` and object `user_data`: {remedy}")
        names, given = {user for user in users if isinstance(user, str)}, set()
        for name, values in _user_data(text):
            if name in names:
                given.add(name)
                yield User(file, plain(name), *_lists(file, name, values, remedy))
        for user in users:
            if not (isinstance(user, str) and user in given):
                _lists(file, user, None, remedy)
        if len(names) < len(users):
            name = next(name for name in users if users.count(name) > 1)
            raise _twice(file, name, remedy)


def plain(text: str) -> str:
    """The text with ? in place of each unpaired surrogate, which JSON can hold but UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def _twice(file, name, remedy):
    return BadInput(f"{file}: user {quoted(name, 60)} occurs twice: {remedy}")


def _lists(file: Path, name: Any, values: Any, remedy: str) -> tuple[list, list]:
    """The lists x and y of a user. Raises BadInput unless they are equally long."""
    x, y = (values.get(key) if isinstance(values, dict) else None for key in ("x", "y"))
    if isinstance(x, list) and isinstance(y, list) and len(x) == len(y):
        return x, y
    problem = "has no lists x and y of equal length"
    raise BadInput(f"{file}: user {quoted(name, 60)} {problem}: {remedy}")


def _text(file: Path) -> str:
    """The text of a JSON file in any Unicode encoding."""
    content = safe.content(file)
    return content.decode(json.detect_encoding(content), "surrogatepass")


def _listed(text: str) -> list | None:
    """The list `users`; None if there is no such list or no object `user_data`."""
    users, has_data, cursor = None, False, Cursor(text)
    if cursor.peek() != "{":
        cursor.skip()
        return None
    for key in cursor.members():
        if key == "user_data":
            has_data = cursor.peek() == "{"
            if has_data and users is not None:
                return users
        if key == "users":
            users = cursor.value()
            users = users if isinstance(users, list) else None
        else:
            cursor.skip()
    return users if has_data else None


def _user_data(text: str) -> Iterator[tuple[str, Any]]:
    """The members of the object `user_data`, one by one."""
    cursor = Cursor(text)
    for key in cursor.members():
        if key == "user_data":
            for name in cursor.members():
                yield name, cursor.value()
        else:
            cursor.skip()
    cursor.end()


class Cursor:
    """A position in a JSON text, which advances as values are read.

    Its methods raise ValueError if the text is malformed at that position.
    """

    def __init__(self, text: str):
        """Starts at the beginning of the text."""
        self.text, self.at = text, 0

    def peek(self) -> str:
        """The next character that is not whitespace; "" at the end."""
        blank = BLANK.match(self.text, self.at)
        assert blank is not None  # it matches the empty text
        self.at = blank.end()
        return self.text[self.at : self.at + 1]

    def take(self, characters: str) -> str:
        """Reads the next character that is not whitespace; it must be one of `characters`."""
        character = self.peek()
        if not character or character not in characters:
            raise ValueError(f"expected {' or '.join(characters)} at character {self.at}")
        self.at += 1
        return character

    def value(self) -> Any:
        """Reads the next value."""
        self.peek()
        made, self.at = DECODER.raw_decode(self.text, self.at)
        return made

    def members(self) -> Iterator[str]:
        """The keys of the next object; the caller must read each value before the next key."""
        self.take("{")
        if self.peek() == "}":
            self.take("}")
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise ValueError(f"a key before character {self.at} is not a string")
            self.take(":")
            yield key
            if self.take(",}") == "}":
                return

    def skip(self) -> None:
        """Skips the next value; the members of an object are decoded one by one."""
        if self.peek() != "{":
            self.value()
            return
        for _ in self.members():
            self.value()

    def end(self) -> None:
        """Raises ValueError unless the whole text has been read."""
        if self.peek():
            raise ValueError(f"unexpected text at character {self.at}")
