"""Helpers of the data sources that generate the examples of natural users on this machine."""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.ranges import Within

LARGEST = 1_000_000  # upper limit of a spread: larger than any useful value, far from overflow


Spread = Annotated[float, Within(0, LARGEST)]
Concentration = Annotated[float, Within(0, LARGEST, above=True)]  # of a Dirichlet distribution


def draw_sizes(
    draw: Callable[[int], np.ndarray], num_users: int, *, least: int, example_bytes: int
) -> np.ndarray:
    """The number of examples of each user, [num_users].

    draw: (number of users) -> their numbers of examples, at least `least` each.
    least: the smallest number of examples of a user.
    example_bytes: the size of one example in memory.

    Raises BadInput if all examples do not fit in memory.
    """
    what = f"the examples of config.data.num_users={num_users}"
    safe.check_fits(least * num_users * example_bytes, what, "lower it")  # before the sizes
    sizes = draw(num_users).astype(np.int64)
    safe.check_fits(int(sizes.sum()) * example_bytes, what, "lower it")
    return sizes


def training_counts(sizes: np.ndarray, test_share: float) -> np.ndarray:
    """The number of training examples of each user: floor((1 - test_share) n), at least one."""
    return np.maximum(1, ((1 - test_share) * sizes + 1e-9).astype(np.int64))  # 1e-9: for rounding


def user_dataset(
    x: np.ndarray, y: np.ndarray, sizes: np.ndarray, training: np.ndarray, **facts: Any
) -> Dataset:
    """The dataset of examples x [R, ...], y [R] that are ordered by user.

    sizes: the number of examples of each user.
    training: how many of these are training examples; they come first, then test examples.
    facts: further fields of the dataset, such as the names of its classes.
    """
    client = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    place = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its user
    return Dataset(
        x=x,
        y=y,
        domain=np.zeros(len(y), np.int32),
        test=place >= training[client],
        client=client,
        users=tuple(f"f_{user:05d}" for user in range(len(sizes))),
        **facts,
    )
