"""The check of a partition."""

from collections.abc import Callable

import numpy as np

from fedjax_lab import defaults
from fedjax_lab.data.partitions import dealing
from fedjax_lab.data.partitions import partitioning as partitions
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.registry import bind
from fedjax_lab.testing.failure import CheckFailed, check, section

COUNT, USERS = 600, 12  # training examples and natural users of the toy dataset


@defaults.restored()
def check_partition(
    partition: str | Callable, num_clients: int = 5, num_domains: int = 1, **settings
) -> None:
    """Raises CheckFailed unless the function is a valid partition of training examples.

    partition: (y [R], domain [R], num_clients, rng, *, settings) -> rows of each client; or
        (examples, num_clients, rng, *, settings), see
        `fedjax_lab.data.partitions.dealing.Examples`; or the name of a partition, or a reference.
    num_clients: the number of clients among which the function must divide the examples.
    num_domains: the number of domains of the toy dataset, which has 600 examples of 10 classes and
        12 users.
    **settings: values that replace the defaults of the partition's settings.
    """
    named = section("partition", partition, settings)
    deal = bind("partition", named)
    examples, before = _toy(num_domains), _toy(num_domains)
    again = dealing.call(deal, examples, num_clients, np.random.default_rng(1))
    check(
        len(again) == num_clients,
        f"the partition returns rows for {len(again)} clients instead of {num_clients}",
    )
    rng = np.random.default_rng(1)
    try:
        rows = dealing.deal(deal, examples, num_clients, rng, named["name"])
        partitions.check(rows)
    except BadInput as error:
        raise CheckFailed(str(error)) from error
    check(
        all(np.array_equal(a, b) for a, b in zip(rows, again, strict=True)),
        "two calls with the same random generator return different rows; all random numbers must"
        " come from `rng`",
    )
    check(
        all(np.array_equal(a, b) for a, b in zip(before[:4], examples[:4], strict=True)),
        "the partition modifies labels or domains in place; it must copy them first",
    )


def _toy(num_domains):
    """Examples that are vectors around the mean of their class, and serve as their embeddings."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, COUNT).astype(np.int32)
    x = (rng.normal(size=(10, 8))[y] + rng.normal(size=(COUNT, 8))).astype(np.float32)
    return dealing.Examples(
        x=x,
        y=y,
        domain=np.arange(COUNT, dtype=np.int32) % num_domains,
        client=rng.integers(0, USERS, COUNT).astype(np.int32),
        users=tuple(f"user {i}" for i in range(USERS)),
        embed=lambda: x.copy(),
    )
