"""The exception for invalid input of a user, checks that raise it, and parts of its messages."""

import argparse
import difflib
import errno
import json
import math
import os
import reprlib
import sys
import sysconfig
import traceback
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

LONGEST = 500  # characters of a message
LONGEST_WORD = 200  # characters of a word in a message
MOST_CAUSES = 100  # causes of an error that are searched
MACHINE = frozenset(  # codes of an OSError that is not caused by input
    getattr(errno, name)
    for name in "ENOSPC EDQUOT EFBIG EIO ENOMEM EMFILE ENFILE EROFS ESTALE".split()
)


class BadInput(ValueError):
    """Raised for bad usage, a bad config or bad data, with a message of one line.

    Every command prints the message and exits with code 2.
    """


def tell(error: BadInput) -> int:
    """Prints the error in one line of at most LONGEST characters; returns the exit code 2."""
    words = (cut(word, LONGEST_WORD) for word in str(error).split())  # shortens long values first
    print("error:", cut(printable(" ".join(words)), LONGEST), file=sys.stderr)
    return 2


def cut(text: str, longest: int) -> str:
    """Shortens a text of more than `longest` characters to its beginning and its end."""
    if len(text) <= longest:
        return text
    kept = longest - len(" ... ")
    return f"{text[: kept - kept // 2]} ... {text[len(text) - kept // 2 :]}"


def shown(value: Any) -> str:
    """A value as one line of printable characters (see `printable`); '' for an empty text."""
    text = str(value) if isinstance(value, (str, Path)) else json.dumps(value)
    return printable(text) or "''"


def printable(text: str) -> str:
    """The text with escapes for unprintable characters, which could control a terminal."""
    return "".join(
        c if c.isprintable() or unicodedata.category(c) == "Zs" else repr(c)[1:-1] for c in text
    )


def quoted(value: Any, longest: int = 80) -> str:
    """Formats a value for a message, shortened; the rest of a large value is never formatted."""
    short = reprlib.Repr()
    short.maxlevel = 2
    short.maxstring = short.maxother = short.maxlong = longest
    try:
        return cut(short.repr(value), longest)
    except Exception:  # an integer with too many digits, or a user's class whose repr raises
        return f"a value of type {type(value).__name__} that cannot be shown"


def missing(error: ImportError, extra: str) -> BadInput:
    """The error for a missing package of this extra of the package."""
    return BadInput(f"a package is missing ({error}): pip install 'fedjax_lab[{extra}]'")


def warn(message: str) -> None:
    """Prints a warning to stderr in one line."""
    print("warning:", printable(" ".join(message.split())), file=sys.stderr)


def refuse(message: str) -> NoReturn:
    """Raises BadInput; replaces the method `error` of a command's argument parser."""
    raise BadInput(message)


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parses a command's flags. Raises BadInput, with the nearest flag, for an unknown one."""
    parser.error = refuse  # type: ignore[method-assign]  # for this parser only
    args, rest = parser.parse_known_args(argv)
    if rest:
        flags = [text for action in parser._actions for text in action.option_strings]
        name = rest[0].partition("=")[0]
        raise BadInput(f"unexpected argument {quoted(rest[0])}; {nearest(name, flags)}")
    return args


def check_seeds(seeds: Sequence[int]) -> None:
    """Raises BadInput unless there are seeds, all of them valid and different."""
    if not seeds or not all(0 <= seed < 2**32 for seed in seeds):
        raise BadInput(f"seeds must be from 0 to 2**32 - 1, got {quoted(seeds)}")
    if len(set(seeds)) < len(seeds):
        repeated = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise BadInput(f"seed {repeated} is given more than once; give each seed only once")


def check_path(flag: str, path: str | Path | None) -> None:
    """Raises BadInput if no local file can have that path: SCHEME://, too long, or a NUL byte."""
    if "://" in str(path):
        raise BadInput(f"{flag} must be a local path, got {cut(str(path), 80)}")
    try:
        os.lstat(path or ".")
    except ValueError as error:
        raise BadInput(f"{flag} must not have a NUL byte") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise BadInput(f"{flag}={cut(str(path), 80)}: {error.strerror}") from error


def check_choice(key: str, value: str, valid: Iterable[str]) -> None:
    """Raises BadInput unless the config's value of `key` is one of the valid ones."""
    if value not in valid:
        raise BadInput(f"config.{key} cannot be {quoted(value)}; {nearest(value, valid)}")


def check_range(key: str, value, low, high=math.inf, of: str = "") -> None:
    """Raises BadInput unless the config's value of `key` is from `low` to `high`, which is `of`."""
    if not low <= value <= high:
        span = f"at least {low}" if high == math.inf else f"from {low:,} to {high:,}"
        raise BadInput(f"config.{key} must be {span}{of and ', '}{of}, got {quoted(value)}")


def nearest(word: str, valid: Iterable[str], first: Sequence[str] = ()) -> str:
    """The end of a message about an unknown name: the closest valid name, or all of them.

    first: those of the valid names that are listed first.
    """
    valid = [*first, *sorted(set(valid) - {*first})]
    close = difflib.get_close_matches(word, valid, 1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"valid: {', '.join(valid)}" if valid else "there are none"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, its cause, the cause of that, and so on; each once, also if they form a circle."""
    seen: list[BaseException] = []
    while error is not None and len(seen) < MOST_CAUSES and all(error is not e for e in seen):
        seen.append(error)
        yield error
        error = error.__context__ if error.__cause__ is None else error.__cause__


_of_parts: set[str] = set()  # files and folders with the installed packages of a user's parts


def add_part(module: str) -> None:
    """Lets `place_of` count the package of this imported module as a user's code.

    Only for a package that is installed, and that nothing else has imported.
    """
    path = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    if path:
        _of_parts.add(os.path.dirname(path) if Path(path).stem == "__init__" else path)


def place_of(error: BaseException) -> str:
    """Where in a user's code an error was raised, as "own.py, line 3"; "" if it was elsewhere.

    The file that was started as a program does not count: it is either a command of the package, or
    a script of the user that gets the exception itself.
    """
    installed = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    libraries = (os.path.dirname(__file__), *installed)
    program = os.path.abspath(getattr(sys.modules["__main__"], "__file__", None) or ".")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        of_library = any(file.is_relative_to(folder) for folder in libraries)
        of_part = any(file.is_relative_to(folder) for folder in _of_parts)
        is_own = of_part or not of_library
        if file.is_file() and is_own and str(file.absolute()) != program:
            return f"{file.name}, line {frame.lineno}"
    return ""


def message_of(error: BaseException) -> str:
    """The message of an error, or a substitute if its `__str__` raises an error."""
    try:
        return str(error)
    except BaseException:  # a user's exception may do anything in __str__
        return "(its message cannot be shown)"


def reason_of(error: BaseException) -> str:
    """The type and the message of an error in one line."""
    return cut(" ".join(f"{type(error).__name__}: {message_of(error)}".split()), 300)
