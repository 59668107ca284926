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
    deal = bind("partition", section("partition", partition, settings))
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 600).astype(np.int32)
    domain = np.arange(600, dtype=np.int32) % num_domains
    before = y.copy(), domain.copy()
    parts = deal(y, domain, num_clients, np.random.default_rng(1))
    again = deal(y, domain, num_clients, np.random.default_rng(1))
    check(
        len(parts) == num_clients,
        f"it gives rows for {len(parts)} clients, where {num_clients} are asked for",
    )
    rows = [np.asarray(part) for part in parts]
    for client, part in enumerate(rows):
        _check_rows(client, part)
    try:
        partitions.check(rows)
    except BadInput as error:
        raise CheckFailed(str(error)) from error
    check(
        all(np.array_equal(a, b) for a, b in zip(rows, again, strict=True)),
        "the same random generator gives different rows; all random numbers must come from `rng`",
    )
    check(
        all(np.array_equal(a, b) for a, b in zip(before, (y, domain), strict=True)),
        "it changes the labels or domains that it is given; copy them first",
    )


def _check_rows(client, part):
    check(
        part.ndim == 1 and part.dtype.kind in "iu",
        f"the rows of client {client} must be whole numbers [n], got {part.dtype}"
        f"{list(part.shape)}",
    )
    check(
        not part.size or 0 <= part.min() <= part.max() < 600,
        f"client {client} has rows that are not among the 600 examples",
    )
    check(len(np.unique(part)) == len(part), f"client {client} holds an example more than once")
