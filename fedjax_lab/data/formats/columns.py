"""Selects columns of a table by type or name, and numbers their values."""

from collections.abc import Sequence

import numpy as np

from fedjax_lab.errors import BadInput, cut, nearest, quoted


def check(key: str, name: str, there: Sequence[str], where: str) -> None:
    """Raises BadInput unless the column `name`, the value of config.data.`key`, exists."""
    if name not in there:
        raise BadInput(
            f"{where} has no column {quoted(name)} (config.data.{key}); {nearest(name, there)}"
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


def numbered(values: Sequence, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers the values: the index [R] int32 of each one among the sorted distinct values.

    Returns the indices and the distinct values as strings. Raises BadInput unless the values are
    integers, strings or booleans, all of one kind.
    """
    for row, value in enumerate(values):
        if not isinstance(value, (int, str)) or isinstance(value, str) != isinstance(
            values[0], str
        ):
            raise BadInput(
                f"{where} has {quoted(value)} in row {row}, but needs only integers or only names"
            )
    names = sorted(set(values))
    number = {name: index for index, name in enumerate(names)}
    numbers = np.fromiter((number[value] for value in values), np.int32, len(values))
    return numbers, tuple(map(str, names))


def check_labels(labels: np.ndarray, classes: Sequence[str], where: str) -> None:
    """Raises BadInput unless each label is the number of a class; unlabeled rows often have -1."""
    bad = (labels < 0) | (labels >= len(classes))
    if bad.any():
        row = int(bad.argmax())
        raise BadInput(
            f"{where} has label {labels[row]} in row {row}, not 0 to {len(classes) - 1}; if this"
            " split has no labels, choose another with --config.data.train_split or test_split"
        )
