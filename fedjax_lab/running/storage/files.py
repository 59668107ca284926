"""Reads and checks the files of runs and sweeps, with the same error messages everywhere.

The expected content of a file is declared as a shape: a `Kind` of value, `[shape]` for a list with
at least one item, or a dict of shapes by key. In a dict, `"key?"` may be missing, and `"*"` stands
for all keys that the dict does not name; without it, other keys may hold anything.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_lab.data import safe
from fedjax_lab.errors import MACHINE, BadInput, quoted
from fedjax_lab.experiment.aliases import current_saved
from fedjax_lab.simulation.units import OF_NEW, ONE_NUMBER

DRAWS = "draws"  # the subfolder of a sweep with the runs of a search for settings
WAYS = ("last", "best_by_validation", "max_over_rounds", "max_per_domain")  # to choose a round
DEEPEST = 50  # the largest number of nested lists and objects


class Damaged(BadInput):
    """Raised for a file with invalid content. The message names the file and the fault."""


class Kind(NamedTuple):
    """A kind of value: its description in messages, and a test for it."""

    words: str
    fits: Callable[[Any], bool]


def _is_number(value):
    largest = sys.float_info.max
    return type(value) in (int, float) and -largest <= value <= largest  # false for NaN


NUMBER = Kind("a finite number", _is_number)
COUNT = Kind("a whole number >= 0", lambda value: type(value) is int and 0 <= value < 2**53)
POSITIVE = Kind("a whole number >= 1", lambda value: type(value) is int and 0 < value < 2**31)
TEXT = Kind("text", lambda value: isinstance(value, str))
SCORE = Kind("a finite number or null", lambda value: value is None or _is_number(value))
OBJECT: dict[str, Any] = {}  # with any keys

SCORES = {  # the accuracy and the loss of a model, in all forms
    "accuracy?": {"mean": NUMBER, "per_client?": [SCORE], "*": NUMBER},
    "domains?": {"*": NUMBER},
    "levels?": {"*": NUMBER},
    "kinds?": {"*": NUMBER},
    "loss?": {"per_client?": [SCORE], "*": SCORE},
    "domains_loss?": {"*": SCORE},
    **{f"{form}?": NUMBER for form in ONE_NUMBER},
    **{f"{form}_loss?": SCORE for form in ONE_NUMBER},
}
PER_CLIENT = {  # the values of single clients, for measures that are one number
    f"{form}{metric}_per_client?": [SCORE]
    for form in ("id", "ood", *OF_NEW)
    for metric in ("", "_loss")
}
NAMES = {  # names.json
    "classes?": [TEXT],
    "domains": [TEXT],
    "clients": {
        "*": {"names?": [TEXT], "examples": [COUNT], "domains?": [TEXT], "seconds?": [NUMBER]}
    },
}
EVALUATION = {  # a line of metrics.jsonl; metrics that a config names may add any keys
    "round": POSITIVE,
    "seed": COUNT,
    "stage?": TEXT,
    "train_loss?": NUMBER,
    **SCORES,
    **PER_CLIENT,
    "bytes_up": NUMBER,
    "bytes_down": NUMBER,
    "seconds": NUMBER,
    "virtual_seconds?": NUMBER,
    "epsilon?": SCORE,  # null: infinite
    "delta?": NUMBER,
}
SECTION = {"name?": TEXT}  # of a config
CONFIG = {  # config.json
    "data": SECTION,
    "partition": SECTION,
    "method": {"name": TEXT},
    "run": {"rounds?": POSITIVE, "eval_every?": POSITIVE},
    "seeds": [COUNT],
    "parts?": {"*": OBJECT},  # where the user's own functions came from
    "*": SECTION,  # the others
}
_CHOSEN = {"round?": NUMBER, "train_loss?": NUMBER, "epsilon?": SCORE, **SCORES}
_WAY = {"per_seed": {"*": _CHOSEN}, "mean": _CHOSEN, "std?": _CHOSEN}
PRIVACY = {  # the privacy guarantee of a run; epsilon null: infinite, and other keys are missing
    "epsilon": SCORE,
    "delta?": NUMBER,
    "unit?": TEXT,
    "neighbors?": TEXT,
    "noise": NUMBER,
    "full?": {"*": COUNT},  # by seed: the rounds whose Poisson cohort had its maximum size
}
SUMMARY = {  # summary.json, as far as comparisons read it
    "diverged?": {"*": COUNT},
    "stopped?": {"rule": TEXT, "round": COUNT},  # the rule that ended the run early
    "lower_is_better?": [TEXT],
    "privacy?": PRIVACY,
    "data?": {"*": TEXT},  # name, license, citation, fingerprint
    "device?": TEXT,
    "strategy?": TEXT,
    "versions?": {"*": TEXT},
    **{f"{way}?": _WAY for way in WAYS},
}
FINISHED = {  # summary.json, as far as a run prints it at its end
    **SUMMARY,
    "seeds": [COUNT],
    "rounds": COUNT,
    "last": _WAY,
    "seconds": NUMBER,
    "compile_seconds": NUMBER,
    "device": TEXT,
    "hints?": [TEXT],
}
TUNED = {  # the cost of a search for the settings of a cell
    "by": TEXT,
    "on": TEXT,
    "draws": COUNT,
    "diverged": COUNT,
    "rounds": COUNT,
    "seconds": NUMBER,
}
CELL = {  # a cell of a sweep; `seeds` if they are not those of the sweep
    "method": TEXT,
    "grid": {"*": TEXT},
    "config": OBJECT,
    "seeds?": [COUNT],
    "tuned?": TUNED,
}
PLAN = {"cells": {"*": CELL}}  # sweep.json


def read_json(path: Path, shape: Any) -> Any:
    """Reads a JSON file and checks it against the shape; None if the file does not exist.

    Raises Damaged if the content is invalid.
    """
    content = read_bytes(path)
    if content is None:
        return None
    try:
        value = _parse(content)
        check(value, shape)
    except ValueError as error:
        raise Damaged(f"{path} cannot be used: {error}") from error
    return value


def read_config(path: Path) -> dict | None:
    """Reads a run's config.json, with renamed keys updated; None if the file does not exist.

    Raises Damaged if the content is invalid.
    """
    config = read_json(path, CONFIG)
    return None if config is None else current_saved(config)


def or_run_inside(folder: Path) -> str:
    """The end of a message that a folder holds no run: a run inside of it, if it has one."""
    inside = next((path.parent for path in sorted(folder.glob("*/config.json"))), None)
    return f"; name one of the runs inside of it, such as {inside}" if inside else ""


def read_plan(path: Path) -> dict[str, dict]:
    """Reads the cells of a sweep.json, with renamed config keys updated.

    Raises Damaged if the content is invalid.
    """
    cells = read_json(path, PLAN)["cells"]
    return {name: {**cell, "config": current_saved(cell["config"])} for name, cell in cells.items()}


def read_rows(path: Path, shape: Any) -> list[Any]:
    """Reads a file with one JSON value per line, each checked against the shape; [] without a file.

    An incomplete last line is left out, because the process that wrote it was killed. Raises
    Damaged for any other invalid line.
    """
    lines = (read_bytes(path) or b"").split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _parse(line)
        except ValueError as error:
            if number == len(lines):  # the only line without a newline
                break
            raise Damaged(f"{path} cannot be used: line {number}: {error}") from error
        try:
            check(row, shape)
        except ValueError as error:
            raise Damaged(f"{path} cannot be used: line {number}: {error}") from error
        rows.append(row)
    return rows


def read_text(path: Path) -> str | None:
    """Reads a text file, replacing bytes that are not UTF-8; None if the file does not exist.

    Raises Damaged if the path is not a readable file.
    """
    content = read_bytes(path)
    return None if content is None else content.decode(errors="replace")


def read_bytes(path: Path) -> bytes | None:
    """Reads a file; None if it does not exist. Raises Damaged if it is not a readable file."""
    try:
        safe.check_regular(path)
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in MACHINE:
            raise
        raise Damaged(f"{path} cannot be used: {error.strerror or error}") from error


def check(value: Any, shape: Any) -> None:
    """Raises a ValueError that names the part of the value which does not have the shape."""
    for fault in _faults(value, shape, ""):
        raise ValueError(fault)


def _faults(value: Any, shape: Any, name: str) -> Iterator[str]:
    it = name or "it"
    if isinstance(shape, Kind):
        if not shape.fits(value):
            yield f"{it} must be {shape.words}, not {quoted(value)}"
    elif isinstance(shape, list):
        if not isinstance(value, list) or not value:
            yield f"{it} must be a list with at least one value, not {quoted(value)}"
        elif not (isinstance(shape[0], Kind) and all(map(shape[0].fits, value))):
            for i, each in enumerate(value):
                yield from _faults(each, shape[0], f"{name}[{i}]")
    elif not isinstance(value, dict):
        yield f"{it} must be a JSON object, not {quoted(value)}"
    else:
        needed = {key for key in shape if key != "*" and not key.endswith("?")}
        if lacking := needed - value.keys():
            yield f"{it} lacks {', '.join(sorted(lacking))}"
        for key, each in value.items():
            inner = shape.get(key, shape.get(f"{key}?", shape.get("*")))
            if inner is not None:
                yield from _faults(each, inner, f"{name}.{key}" if name else key)


def _parse(content):
    """Parses JSON text. Raises a ValueError that describes the fault."""
    if not content.strip():
        raise ValueError("it is empty")
    try:
        value = json.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ValueError("it is not text in UTF-8") from error
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.pos}"
        raise ValueError(f"it is truncated or not JSON ({reason})") from error
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    brackets = content.count(b"[") + content.count(b"{")
    if brackets > DEEPEST and _is_deep(value, DEEPEST):
        raise ValueError("its values are nested too deeply")
    return value


def _is_deep(value, levels):
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deep(each, levels - 1) for each in inner)
