"""Ranges from which a search draws the settings of a method.

A method declares the ranges of its settings in a constant of its file, beside its function:

    RANGES = {"mu": log_uniform(1e-3, 1.0)}

`python -m fedjax_lab.sweep --tune=random:20`, or `tpe:20`, draws from these ranges. Files with your
own methods declare them in the same way.
"""

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedjax_lab.errors import BadInput, cut, nearest, quoted

DIGITS = 3  # significant digits of a drawn number, so that it is easy to read and to type


class Range(NamedTuple):
    """A distribution of the values of a setting."""

    kind: str  # a key of KINDS
    values: tuple[Any, ...]  # the two ends of an interval, or all values of a choice

    def __str__(self) -> str:
        """The text that `parse` converts to the same range."""
        return f"{self.kind}:{','.join(map(str, self.values))}"


def log_uniform(low: float, high: float) -> Range:
    """Numbers between two positive bounds, whose logarithm is uniformly distributed."""
    _check_interval(low, high)
    if low <= 0:
        raise BadInput(f"a log-uniform range must begin above 0, got {quoted(low)}")
    return Range("log", (low, high))


def uniform(low: float, high: float) -> Range:
    """Uniformly distributed numbers between two bounds."""
    _check_interval(low, high)
    return Range("uniform", (low, high))


def choice(*values: Any) -> Range:
    """The listed values, all equally likely."""
    if not values:
        raise BadInput("a choice needs at least one value")
    return Range("choice", values)


KINDS: dict[str, Callable[..., Range]] = {
    "log": log_uniform,
    "uniform": uniform,
    "choice": choice,
}


def at(range_: Range, share: float) -> Any:
    """A quantile of a range: the value below which a `share` of its values lies, in [0, 1)."""
    if range_.kind == "choice":
        return range_.values[int(share * len(range_.values))]
    low, high = range_.values
    if range_.kind == "log":
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    return rounded(value)


def rounded(value: float) -> float:
    """The number with few digits."""
    return float(f"{value:.{DIGITS}g}")


def parse(text: str) -> Range:
    """The range of a text such as "log:0.001,1", "uniform:0,0.9" or "choice:1,2,5".

    The values of a choice stay text, because the setting determines their type.

    Raises BadInput if the text is not a range.
    """
    kind, colon, listed = text.partition(":")
    values: list[Any] = [value.strip() for value in listed.split(",")]
    if not colon or not all(values):
        raise BadInput(f"{cut(text, 80)} is not a range; for example log:0.001,1 or choice:1,2,5")
    if kind not in KINDS:
        raise BadInput(f"{cut(text, 80)}: no range {quoted(kind)}; {nearest(kind, KINDS)}")
    if kind == "choice":
        return choice(*values)
    if len(values) != 2:
        raise BadInput(f"{cut(text, 80)}: a range of numbers has two bounds, got {len(values)}")
    return KINDS[kind](*map(_number, values))


def declared(function: Callable) -> Mapping[str, Range]:
    """The RANGES of the file that defines a function; empty if the file has none.

    Raises BadInput if RANGES is not a dict from settings to ranges.
    """
    ranges = getattr(inspect.unwrap(function), "__globals__", {}).get("RANGES", {})
    name = getattr(function, "__name__", "a function")
    if not isinstance(ranges, Mapping):
        raise BadInput(f"RANGES in the file of {name} must be a dict, got {quoted(ranges)}")
    for key, value in ranges.items():
        if not isinstance(value, Range):
            raise BadInput(
                f"RANGES[{key!r}] in the file of {name} must be made by fedjax_lab.ranges, such as"
                f" log_uniform(1e-3, 1.0), got {quoted(value)}"
            )
    return ranges


def _number(text):
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = text
    if type(value) not in (int, float):
        raise BadInput(f"the bound of a range must be a number, got {quoted(text)}")
    return float(value)


def _check_interval(low, high):
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BadInput(f"a range must go from a finite number to a larger one, got {low} to {high}")


# The range of config.local.lr for every method, by the name of the optimizer.
LEARNING_RATES = {"sgd": log_uniform(1e-3, 0.3), "nesterov": log_uniform(1e-3, 0.3)}
ADAPTIVE = log_uniform(1e-4, 1e-2)  # the range for all other optimizers
