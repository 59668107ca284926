"""Bounds and choices of settings, declared where their defaults stand.

A setting whose annotation has bounds, or lists words, accepts nothing else:

    def method(
        task: Task,
        *,
        lam: NotNegative[float] = 0.1,
        degree: Annotated[int, Within(1, 1000)] = 4,
        staleness: Literal["polynomial", "constant", "hinge"] = "polynomial",
        clusters: Positive[int] | Literal["elbow"] = 5,
    ) -> Method:

They are checked when a config is read and when a method is made. A setting `tuple[X, ...]` has the
bounds of X for each of its values. Files with your own functions declare bounds in the same way.
"""

import inspect
import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from fedjax_lab.errors import BadInput, nearest, quoted


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

    def check(self, key: str, value: Any) -> None:
        """Raises BadInput if the config's value of `key` is a number out of bounds.

        Other values are not checked, such as words and traced numbers.
        """
        if not isinstance(value, (int, float)):
            return
        above = value > self.low if self.above else value >= self.low
        below = value < self.high if self.below else value <= self.high
        if not (above and below):
            raise BadInput(f"config.{key} must be {self}, got {quoted(value)}")


class OneOf(NamedTuple):
    """All values of a setting: words, or integers."""

    values: Iterable[str | int]

    def __str__(self) -> str:
        """The values, such as "one of none, sum"."""
        return f"one of {', '.join(map(str, self.values))}"

    def check(self, key: str, value: Any) -> None:
        """Raises BadInput, with the nearest word or all numbers, if the value is none of them."""
        if isinstance(value, (str, int)) and value not in self.values:
            numbers = f"valid: {', '.join(map(str, self.values))}"
            valid = nearest(value, map(str, self.values)) if isinstance(value, str) else numbers
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


def declared(annotation: Any) -> Limit | None:
    """The limit that an annotation declares; None if it declares none.

    `Literal` in a union lists words besides values of the other types, which is no limit.
    """
    if get_origin(annotation) is Literal:
        return OneOf(get_args(annotation))
    for mark in getattr(annotation, "__metadata__", ()):
        if isinstance(mark, Within | OneOf):
            return mark
    for part in get_args(annotation):
        if get_origin(part) is not Literal and (limit := declared(part)) is not None:
            return limit
    return None


def limits(signature: inspect.Signature) -> dict[str, Limit]:
    """The limits that the arguments of a function declare, by name."""
    each = {key: declared(p.annotation) for key, p in signature.parameters.items()}
    return {key: limit for key, limit in each.items() if limit is not None}


def check(key: str, value: Any, limit: Limit | None) -> None:
    """Raises BadInput unless the config's value of `key`, or each value of a tuple, is allowed."""
    for each in value if isinstance(value, tuple) else (value,):
        if limit is not None:
            limit.check(key, each)
