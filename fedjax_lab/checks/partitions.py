"""The check of a partition."""

from collections.abc import Callable

import numpy as np

from fedjax_lab.checks.failure import CheckFailed, check, section
from fedjax_lab.data import partition as partitions
from fedjax_lab.errors import BadInput
from fedjax_lab.registry import bind


def check_partition(
    partition: str | Callable, num_clients: int = 5, num_domains: int = 1, **settings
) -> None:
    """Raises CheckFailed unless the function divides training examples as a partition must.

    partition: (y [R], domain [R], num_clients, rng, *, settings) -> rows of each client.
    num_clients, num_domains: of the toy, which has 600 examples of 10 classes.
    """
    named = section("partition", partition, settings)
    deal = bind("partition", named)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 600).astype(np.int32)
    domain = np.arange(600, dtype=np.int32) % num_domains
    before = y.copy(), domain.copy()
    again = deal(y, domain, num_clients, np.random.default_rng(1))
    check(
        len(again) == num_clients,
        f"it gives rows for {len(again)} clients, where {num_clients} are asked for",
    )
    rng = np.random.default_rng(1)
    try:
        rows = partitions.checked(named["name"], deal, y, domain, num_clients, rng)
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
        all(np.array_equal(a, b) for a, b in zip(before, (y, domain), strict=True)),
        "it changes the labels or domains that it is given; copy them first",
    )
