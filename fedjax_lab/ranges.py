"""The values that a setting accepts, and the ranges from which a search draws it.

A setting declares its bounds or its words where its default stands, and accepts nothing else:

    @checked("method")
    def method(
        task: Task,
        *,
        lam: NotNegative[float] = 0.1,
        degree: Annotated[int, Within(1, 1000)] = 4,
        staleness: Literal["polynomial", "constant", "hinge"] = "polynomial",
        clusters: Positive[int] | Literal["elbow"] = 5,
    ) -> Method:

They are checked when a config is read and, by the decorator `checked`, in each call. A setting
`tuple[X, ...]` has the bounds of X for each of its values.

The ranges of a method's settings are a constant of its file, beside its function:

    RANGES = {"mu": log_uniform(1e-3, 1.0)}

`python -m fedjax_lab.sweep --tune=random:20`, or `tpe:20`, draws from these ranges. Files with your
own functions declare bounds and ranges in the same way.
"""

import ast
import contextlib
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from numbers import Real
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, get_args, get_origin
from weakref import WeakKeyDictionary

from fedjax_lab import defaults
from fedjax_lab.errors import BadInput, cut, nearest, quoted

# Bounds of a setting.


class Within(NamedTuple):
    """Bounds of a number."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # whether `low` itself is excluded
    below: bool = False  # whether `high` itself is excluded

    def __str__(self) -> str:
        """The bounds in words, such as "above 0 and at most 1"."""
        if math.isfinite(self.low) and math.isfinite(self.high) and not (self.above or self.below):
            return f"from {self.low:,} to {self.high:,}"
        first = f"{'above' if self.above else 'at least'} {self.low:,}"
        last = f"{'below' if self.below else 'at most'} {self.high:,}"
        ends = [text for text in (first, last) if "inf" not in text]
        return " and ".join(ends)

    def allows(self, number: Any) -> bool:
        """Whether the number is within the bounds."""
        above = number > self.low if self.above else number >= self.low
        return above and (number < self.high if self.below else number <= self.high)

    def check(self, key: str, value: Any) -> None:
        """Raises BadInput if the config's value of `key` is a number out of bounds.

        Other values are not checked, such as words and traced numbers.
        """
        if isinstance(value, Real) and not self.allows(value):
            raise BadInput(f"config.{key} must be {self}, got {quoted(value)}")


class OneOf(NamedTuple):
    """All values of a setting: words, or integers."""

    values: Collection[str | int]

    def __str__(self) -> str:
        """The values, such as "one of none, sum"."""
        return f"one of {', '.join(map(str, self.values))}"

    def check(self, key: str, value: Any) -> None:
        """Raises BadInput, with the nearest word or all values, if the value is none of them.

        Traced numbers are not checked.
        """
        if isinstance(value, (str, int, float, type(None))) and value not in self.values:
            every = f"valid: {', '.join(map(str, self.values))}"
            valid = nearest(value, map(str, self.values)) if isinstance(value, str) else every
            raise BadInput(f"config.{key} cannot be {quoted(value)}; {valid}")


Limit = Within | OneOf

POSITIVE = Within(0, above=True)
NOT_NEGATIVE = Within(0)
SHARE = Within(0, 1)
POSITIVE_SHARE = Within(0, 1, above=True)
BELOW_ONE = Within(0, 1, below=True)

Number = TypeVar("Number", int, float)
Positive = Annotated[Number, POSITIVE]
NotNegative = Annotated[Number, NOT_NEGATIVE]
Share = Annotated[float, SHARE]
PositiveShare = Annotated[float, POSITIVE_SHARE]
BelowOne = Annotated[float, BELOW_ONE]


def limit_of(annotation: Any) -> Limit | None:
    """The limit that an annotation declares; None if it declares none.

    `Literal` in a union lists words besides values of the other types, which is no limit.
    """
    if get_origin(annotation) is Literal:
        return OneOf(get_args(annotation))
    for mark in getattr(annotation, "__metadata__", ()):
        if isinstance(mark, Within | OneOf):
            return mark
    is_tuple = get_origin(annotation) is tuple
    for part in get_args(annotation):
        is_limit = is_tuple or get_origin(part) is not Literal
        if is_limit and (limit := limit_of(part)) is not None:
            return limit
    return None


def words_of(annotation: Any) -> tuple[Any, ...]:
    """The words that a union lists besides values of its other types."""
    literals = [part for part in get_args(annotation) if get_origin(part) is Literal]
    return sum(map(get_args, literals), ())


def signature(function: Callable) -> inspect.Signature:
    """The signature of a function, with annotations evaluated if they are stored as text.

    Raises BadInput if the function has none.
    """
    is_function = inspect.isfunction(function)
    if is_function and function in _signatures:
        return _signatures[function]
    with contextlib.suppress(Exception):  # an annotation names what only a type checker imports
        made = inspect.signature(function, eval_str=True)
        if is_function:
            _signatures[function] = made
        return made
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:  # written in C
        raise BadInput(f"the arguments of {quoted(function)} cannot be determined") from error


# Those of functions that live; a config asks for the same ones many times.
_signatures: WeakKeyDictionary[Callable, inspect.Signature] = WeakKeyDictionary()


def limits(function: Callable) -> dict[str, Limit]:
    """The limits that the settings of a function declare, by name.

    A number of a method that declares no limit must not be negative.
    """
    declared, parameters = {}, signature(function).parameters
    usual = NOT_NEGATIVE if next(iter(parameters), "") == "task" else None
    for key, parameter in parameters.items():
        limit = limit_of(parameter.annotation)
        if limit is None and isinstance(parameter.default, (int, float, tuple)):
            limit = usual
        if limit is not None:
            declared[key] = limit
    return declared


def check(key: str, value: Any, limit: Limit | None, words: tuple[Any, ...] = ()) -> None:
    """Raises BadInput unless the config's value of `key`, or each value of a tuple, is allowed.

    words: further values that are allowed, of a setting that accepts no other words.
    """
    for each in value if isinstance(value, (tuple, list)) else (value,):
        if words and isinstance(each, str):
            OneOf(words).check(key, each)
        elif limit is not None:
            limit.check(key, each)


def check_settings(section: str, function: Callable, values: Mapping) -> None:
    """Raises BadInput for the values in a section of a config that the function does not accept."""
    parameters = signature(function).parameters
    for key, limit in limits(function).items():
        if key in values:
            words = words_of(parameters[key].annotation)
            check(f"{section}.{key}", values[key], limit, words)


Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def checked(
    section: str,
) -> Callable[[Callable[Arguments, Returned]], Callable[Arguments, Returned]]:
    """Decorates a function so that the settings of each call are checked.

    Inside, JAX promotes and transfers as by default: see `defaults.restored`.

    section: that of the config whose settings these are, for messages.
    """

    def decorate(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        if getattr(function, "is_checked", False):  # `wraps` hands this on
            return function

        @wraps(function)
        def call(*args: Arguments.args, **settings: Arguments.kwargs) -> Returned:
            check_settings(section, function, settings)
            with defaults.restored():
                return function(*args, **settings)

        call.is_checked = True  # type: ignore[attr-defined]
        return call

    return decorate


# Ranges of a search.

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
