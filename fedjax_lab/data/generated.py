"""What the sources have in common that draw the examples of natural users on this machine."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput, check_below_one, check_positive

LARGEST = 1_000_000  # spread that is drawn with: far beyond any use, far below overflow


def draw_sizes(
    draw: Callable[[int], np.ndarray], num_users: int, *, least: int, example_bytes: int
) -> np.ndarray:
    """How many examples each user has, [num_users].

    Raises BadInput unless there is a user, and where all examples do not fit in memory.

    draw: how many users -> their numbers of examples, at least `least` each.
    """
    check_positive("data.num_users", num_users)
    _check_memory(num_users, least * num_users, example_bytes)  # before there are so many sizes
    sizes = draw(num_users).astype(np.int64)
    _check_memory(num_users, int(sizes.sum()), example_bytes)
    return sizes


def check_spread(key: str, value: float) -> None:
    """BadInput unless the config's value of `key` is from 0 to LARGEST."""
    if not 0 <= value <= LARGEST:
        raise BadInput(f"config.data.{key} must be from 0 to {LARGEST:,}, got {value}")


def _check_memory(num_users, count, example_bytes):
    try:
        safe.check_memory(count * example_bytes)
    except safe.TooLargeError as error:
        raise BadInput(
            f"the examples of config.data.num_users={num_users} do not fit in memory: {error}; take"
            " fewer users"
        ) from error


def training_counts(sizes: np.ndarray, test_share: float) -> np.ndarray:
    """How many examples of each user are for training: floor((1 - test_share) n), at least one.

    Raises BadInput unless test_share is at least 0 and below 1.
    """
    check_below_one("data.test_share", test_share)
    return np.maximum(1, ((1 - test_share) * sizes + 1e-9).astype(np.int64))  # 0.9 * 10 is below 9


def of_users(
    x: np.ndarray, y: np.ndarray, sizes: np.ndarray, training: np.ndarray, **facts: Any
) -> Dataset:
    """The dataset of examples x [R, ...], y [R] that are in the order of their users.

    sizes: how many examples each user has.
    training: how many of these are for training; the others follow them, and are for tests.
    facts: further fields of the dataset, such as the names of its classes.
    """
    client = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    place = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # among the user's own
    return Dataset(
        x=x,
        y=y,
        domain=np.zeros(len(y), np.int32),
        test=place >= training[client],
        client=client,
        users=tuple(f"f_{user:05d}" for user in range(len(sizes))),
        **facts,
    )
