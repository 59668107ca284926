"""What the sources have in common that draw the examples of natural users on this machine."""

from collections.abc import Callable

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput, check_below_one, check_positive


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


def _check_memory(num_users, count, example_bytes):
    try:
        safe.check_memory(count * example_bytes)
    except safe.TooLargeError as error:
        raise BadInput(
            f"the examples of config.data.num_users={num_users} do not fit in memory: {error}; take"
            " fewer users"
        ) from error


def of_users(
    x: np.ndarray, y: np.ndarray, sizes: np.ndarray, test_share: float, **facts
) -> Dataset:
    """The dataset of examples x [R, ...], y [R] that are in the order of their users.

    The last examples of each user are for tests; one at least is for training.

    sizes: how many examples each user has.
    test_share: the share of them that is for tests, rounded up.
    facts: further fields of the dataset: names, citation.
    """
    check_below_one("data.test_share", test_share)
    client = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return Dataset(
        x=x,
        y=y,
        domain=np.zeros(len(y), np.int32),
        test=places(sizes) >= training_counts(sizes, test_share)[client],
        client=client,
        users=tuple(f"f_{user:05d}" for user in range(len(sizes))),
        **facts,
    )


def training_counts(sizes: np.ndarray, test_share: float) -> np.ndarray:
    """How many examples of users of these sizes are for training: floor((1 - test_share) n)."""
    return np.maximum(1, ((1 - test_share) * sizes + 1e-9).astype(np.int64))  # 0.9 * 10 is below 9


def places(sizes: np.ndarray) -> np.ndarray:
    """The place of each example among those of its user, from 0."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
