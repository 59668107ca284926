"""Columns of a table: found by their kind or by their name, and as numbers with names."""

from collections.abc import Sequence

import numpy as np

from fedjax_lab.errors import BadInput, cut, nearest, quoted


def check(key: str, name: str, there: Sequence[str], where: str) -> None:
    """BadInput unless the column that the config's setting `key` names is there."""
    if name not in there:
        raise BadInput(
            f"{where} has no column {quoted(name)} (config.data.{key}); {nearest(name, there)}"
        )


def choose(key: str, name: str, there: Sequence[str], fitting: Sequence[str], where: str) -> str:
    """The column that the config names, or else the only one that fits.

    Args:
      key: the setting of section `data` that names it.
      name: its value; empty: not named.
      there: all columns.
      fitting: those that could be meant.
      where: the data set, for messages.
    """
    if name:
        check(key, name, there, where)
        return name
    if len(fitting) == 1:
        return fitting[0]
    what = f"{len(fitting)} columns that could be" if fitting else "no column that is clearly"
    among = cut(", ".join(fitting or there), 200)
    raise BadInput(f"{where} has {what} the {key}: --config.data.{key} names one of {among}")


def numbered(values: Sequence, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Each value's number [R] int32, and the names of the different values in ascending order.

    Raises BadInput unless the values are whole numbers, text or flags, all of one kind.
    """
    for row, value in enumerate(values):
        if not isinstance(value, (int, str)) or isinstance(value, str) != isinstance(
            values[0], str
        ):
            raise BadInput(
                f"{where} has {quoted(value)} in row {row}: whole numbers, or names, are wanted"
            )
    names = sorted(set(values))
    number = {name: index for index, name in enumerate(names)}
    numbers = np.fromiter((number[value] for value in values), np.int32, len(values))
    return numbers, tuple(map(str, names))


def check_labels(labels: np.ndarray, classes: Sequence[str], where: str) -> None:
    """BadInput unless each label is the number of a class: unlabeled test rows often have -1."""
    bad = (labels < 0) | (labels >= len(classes))
    if bad.any():
        row = int(bad.argmax())
        raise BadInput(
            f"{where} has label {labels[row]} in row {row}, not 0 to {len(classes) - 1}: are these"
            " rows without labels? --config.data.train_split and test_split name others"
        )
