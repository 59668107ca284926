"""Keeps the same content out of two splits, and reports it where a data set has it."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats.text_rows import are_words
from fedjax_lab.data.partitions.partitioning import Parts
from fedjax_lab.errors import BadInput

MOST = 2**31  # bytes of examples up to which they are compared
FIRST = 1000  # rows among which columns of ids are sought first
LEAST = 50  # rows from which neighbors in the order of a column are compared


def report(dataset: Dataset) -> None:
    """Logs a warning if test examples are also training examples, by their content.

    Of examples that were cut from texts, whole texts are compared. Examples that are read on
    demand, and more than MOST bytes of them, are not compared.
    """
    x, test = dataset.x, np.asarray(dataset.test) != 0
    if type(x) is not np.ndarray or x.nbytes > MOST or not 0 < test.sum() < len(x):
        return
    content = _contents(dataset)
    training = set(content[~test].tolist())
    shared = sum(each in training for each in content[test].tolist())
    if shared:
        logging.getLogger(__name__).warning(
            "%d of %d test examples are equal to training examples; the accuracy on them says"
            " nothing about new examples",
            shared,
            int(test.sum()),
        )


def _contents(dataset):
    """A hash of the content of each example [R]: of its text if it was cut from one."""
    x = np.ascontiguousarray(dataset.x).reshape(len(dataset.x), -1)
    each = np.array([hash(row.tobytes()) for row in x])
    if dataset.origin is None or not are_words(dataset.classes):
        return each
    order = np.argsort(dataset.origin, kind="stable")
    starts = np.flatnonzero(np.diff(dataset.origin[order], prepend=-1))
    content = np.empty_like(each)
    for rows in np.split(order, starts[1:]):
        content[rows] = hash((each[rows].tobytes(), dataset.y[rows].tobytes()))
    return content


def ids_that_predict(x: Any, y: np.ndarray) -> list[int]:
    """The columns of x [R, D] that seem to be ids and that alone predict the labels.

    Ids are whole numbers of which no two rows have the same. In their order, neighbors then have
    the same class, or similar numbers, much more often than by chance: the correlation of neighbors
    exceeds 1/2. y: labels [R], whole numbers of classes or real numbers.
    """
    if len(x) < LEAST or y.ndim > 1:
        return []
    first = np.nan_to_num(np.asarray(x[:FIRST], np.float64))
    distinct = (np.diff(np.sort(first, axis=0), axis=0) > 0).all(0) & (first % 1 == 0).all(0)
    return [column for column in np.flatnonzero(distinct).tolist() if _predicts(x[:, column], y)]


def _predicts(ids, y):
    """Whether a column is one of `ids_that_predict`."""
    ids = np.asarray(ids, np.float64)
    in_order = y[np.argsort(ids, kind="stable")]
    if (ids % 1).any() or len(np.unique(ids)) < len(ids):
        return False
    if y.dtype.kind == "f":
        squares, chance = np.diff(in_order.astype(np.float64)) ** 2, 2 * np.var(in_order)
    else:
        shares = np.unique(y, return_counts=True)[1] / len(y)
        squares, chance = np.diff(in_order) != 0, 1 - (shares**2).sum()
    return bool(squares.mean() < chance / 2)


def remark_on_ids(names: Sequence[str]) -> str:
    """A warning of columns of these names, from `ids_that_predict`."""
    return (
        f"no two rows have the same value of {', '.join(names)}, which predicts the label by itself"
        " and may be a number of the rows or an id: leave it out if new rows will not have it"
    )


def hold_out_ends(
    parts: Parts, fraction: float, overlap: int, user: np.ndarray
) -> tuple[Parts, Parts]:
    """Holds out the last examples of each user, and drops those that share content with them.

    Examples are consecutive windows of a user's text: each one shares content with the `overlap`
    examples before and after it.

    Args:
      parts: the positions of each client's examples.
      fraction: the share of a user's examples that is held out, at least 0 and below 1.
      overlap: the number of examples on each side that share content with an example.
      user: the user of each example [R].

    Returns:
      The (train, validation) parts. Users with too few examples only train.

    Raises:
      BadInput: a client would train on a window that overlaps with another client's validation.
    """
    pairs = [_without_end(np.sort(part), fraction, overlap, user) for part in parts]
    train, validation = map(list, zip(*pairs, strict=True))
    held, trained = np.sort(np.concatenate(validation)), np.concatenate(train)
    low, high = (np.searchsorted(held, trained + side) for side in (-overlap, overlap + 1))
    near = high > low
    of = user[trained[near]]
    if np.any((user[held[low[near]]] == of) | (user[held[high[near] - 1]] == of)):
        raise BadInput(
            "config.partition.validation: texts of one user are divided among several clients, so"
            " that validation texts would overlap with training texts; use"
            " --config.partition.name=by_client or --config.partition.validation=0"
        )
    return train, validation


def _without_end(ordered, fraction, overlap, user):
    """The ascending positions of one client's (training, validation) examples."""
    train, validation = [ordered[:0]], [ordered[:0]]
    for rows in np.split(ordered, np.flatnonzero(np.diff(user[ordered])) + 1):
        first = rows[len(rows) - max(1, int(fraction * len(rows)))]
        before = rows[rows < first - overlap]
        train.append(before if len(before) else rows)
        validation.append(rows[rows >= first] if len(before) else rows[:0])
    return np.concatenate(train), np.concatenate(validation)
