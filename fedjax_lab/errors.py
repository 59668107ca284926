"""The one exception for what a user got wrong, and how its message names the right choice."""

import difflib
import errno
import sys
from collections.abc import Iterable
from typing import NoReturn

MACHINE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})  # of an OSError that no input causes


class BadInput(ValueError):
    """Bad usage, config or data, in one line. Every command prints it and exits with 2."""


def tell(error: BadInput) -> int:
    """Prints the message in one line; returns the exit code."""
    print("error:", " ".join(str(error).split()), file=sys.stderr)
    return 2


def warn(message: str) -> None:
    """Tells on stderr, in one line, of what does not stop the command."""
    print("warning:", " ".join(message.split()), file=sys.stderr)


def refuse(message: str) -> NoReturn:
    """The `error` of a command's argument parser."""
    raise BadInput(message)


def check_choice(key: str, value: str, known: Iterable[str]) -> None:
    """BadInput unless the config's value of `key` is one of the known ones."""
    if value not in known:
        raise BadInput(f"config.{key} cannot be {value!r}; {nearest(value, known)}")


def check_positive(key: str, value) -> None:
    """BadInput unless the config's value of `key` is above 0; traced values are let through."""
    if isinstance(value, (int, float)) and not value > 0:
        raise BadInput(f"config.{key} must be above 0, got {value}")


def check_not_negative(key: str, value) -> None:
    """BadInput if the config's value of `key` is below 0; other than numbers are let through."""
    if isinstance(value, (int, float)) and value < 0:
        raise BadInput(f"config.{key} must not be negative, got {value}")


def check_share(key: str, value) -> None:
    """BadInput unless the config's value of `key` is from 0 to 1; traced values are let through."""
    if isinstance(value, (int, float)) and not 0 <= value <= 1:
        raise BadInput(f"config.{key} must be from 0 to 1, got {value}")


def check_below_one(key: str, value) -> None:
    """BadInput unless the config's value of `key` is in [0, 1); traced values are let through."""
    if isinstance(value, (int, float)) and not 0 <= value < 1:
        raise BadInput(f"config.{key} must be at least 0 and below 1, got {value}")


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest valid one, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, 1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"valid: {', '.join(known)}" if known else "there are none"
