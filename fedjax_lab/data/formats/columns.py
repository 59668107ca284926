"""Selects columns of a table by type or name, and sorts and numbers their values."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedjax_lab.data.formats.image_arrays import labels_of
from fedjax_lab.data.safe import remedied
from fedjax_lab.errors import BadInput, cut, nearest, quoted


def check(key: str, name: str, there: Sequence[str], where: str) -> None:
    """Raises BadInput unless the column `name`, the value of config.data.`key`, exists."""
    if name not in there:
        near = nearest(name, [each for each in there if each and each.isprintable()])
        raise BadInput(f"{where} has no column {quoted(name)} (config.data.{key}); {near}")


def check_splits(train: Sequence[str], test: Sequence[str], there: Iterable, where: str) -> None:
    """Raises BadInput unless the splits of config.data.train_split and test_split exist."""
    for key, names in (("train_split", train), ("test_split", test)):
        for name in names:
            if name not in there:
                what = f"no split {quoted(name)} (config.data.{key}); {nearest(name, there)}"
                raise BadInput(f"{where} has {what}")


def used_twice(split: str, where: str) -> BadInput:
    """The error for examples that are named twice, for training and testing or for one of them."""
    return BadInput(
        f"{where}: some examples of split {quoted(split)} occur twice in config.data.train_split"
        " and config.data.test_split; an example may be used only once"
    )


def choose(key: str, name: str, there: Sequence[str], fitting: Sequence[str], where: str) -> str:
    """The column that the config names, or else the only suitable one.

    Args:
      key: the setting of section `data` that names the column.
      name: the value of that setting; empty if the config does not name a column.
      there: all columns.
      fitting: the columns that are suitable.
      where: the data set, for messages.
    """
    if name:
        check(key, name, there, where)
        return name
    if len(fitting) == 1:
        return fitting[0]
    what = f"{len(fitting)} columns that could be" if fitting else "no column that is clearly"
    among = cut(", ".join(fitting or there), 200)
    raise BadInput(f"{where} has {what} the {key}: set --config.data.{key} to one of {among}")


def as_name(value: Any) -> str:
    """The name in a cell: its text without the blanks around it."""
    return str(value).strip()


def numbered(values: Sequence, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers the values: the index [R] int32 of each one among the sorted distinct values.

    Returns the indices and the distinct values as strings, without blanks around them. Raises
    BadInput unless the values are integers, strings or booleans, all of one kind.
    """
    values = [as_name(value) if isinstance(value, str) else value for value in values]
    for row, value in enumerate(values):
        if not isinstance(value, (int, str)) or isinstance(value, str) != isinstance(
            values[0], str
        ):
            raise BadInput(
                f"{where} has {quoted(value)} in row {row}, but needs only integers or only names"
            )
    names = sorted(set(values))
    return positions(values, names), tuple(map(str, names))


def positions(values: Sequence, names: Sequence) -> np.ndarray:
    """The position [R] int32 of each value among the names."""
    number = {name: index for index, name in enumerate(names)}
    return np.fromiter((number[value] for value in values), np.int32, len(values))


def sorted_names(names: set[str]) -> tuple[str, ...]:
    """The names in numerical order if all are natural numbers, else in alphabetical order."""
    if all(name.isascii() and name.isdigit() and len(name) < 20 for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def check_labels(labels: np.ndarray, classes: Sequence[str], where: str) -> None:
    """Raises BadInput unless each label is the number of a class; unlabeled rows often have -1."""
    other = "choose another with --config.data.train_split or test_split"
    with remedied(f"if this split has no labels, {other}"):
        labels_of(where, labels, len(labels), range(len(classes)))
