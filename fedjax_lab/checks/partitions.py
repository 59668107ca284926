"""The check of a partition."""

from collections.abc import Callable

import numpy as np

from fedjax_lab.checks.failure import CheckFailed, check, section
from fedjax_lab.data import dealing
from fedjax_lab.data import partition as partitions
from fedjax_lab.errors import BadInput
from fedjax_lab.registry import bind

COUNT, USERS = 600, 12  # training examples of the toy, and natural users


def check_partition(
    partition: str | Callable, num_clients: int = 5, num_domains: int = 1, **settings
) -> None:
    """Raises CheckFailed unless the function divides training examples as a partition must.

    partition: (y [R], domain [R], num_clients, rng, *, settings) -> rows of each client; or
        (examples, num_clients, rng, *, settings), see `fedjax_lab.data.dealing.Examples`.
    num_clients, num_domains: of the toy, which has 600 examples of 10 classes by 12 users.
    """
    named = section("partition", partition, settings)
    deal = bind("partition", named)
    examples, before = _toy(num_domains), _toy(num_domains)
    again = dealing.call(deal, examples, num_clients, np.random.default_rng(1))
    check(
        len(again) == num_clients,
        f"it gives rows for {len(again)} clients, where {num_clients} are asked for",
    )
    rng = np.random.default_rng(1)
    try:
        rows = dealing.deal(deal, examples, num_clients, rng, named["name"])
        partitions.check(rows)
    except BadInput as error:
        raise CheckFailed(str(error)) from error
    for client, part in enumerate(rows):
        check(len(np.unique(part)) == len(part), f"client {client} holds an example more than once")
    check(
        all(np.array_equal(a, b) for a, b in zip(rows, again, strict=True)),
        "the same random generator gives different rows; all random numbers must come from `rng`",
    )
    check(
        all(np.array_equal(a, b) for a, b in zip(before[:4], examples[:4], strict=True)),
        "it changes the labels or domains that it is given; copy them first",
    )


def _toy(num_domains):
    """Vectors around the mean of their class, which are their own embeddings."""
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
