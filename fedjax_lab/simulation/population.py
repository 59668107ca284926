"""The clients of a federation: their sizes, the counts of their labels, and their traits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab.types import Client, Federation, NoCounts

PIECE = 1 << 16  # clients whose labels are counted at a time


def make_population(federation: Federation, num_classes: int) -> Client:
    """Returns `population_on_host` as arrays of JAX."""
    return jax.tree.map(jnp.asarray, population_on_host(federation, num_classes))


def population_on_host(federation: Federation, num_classes: int) -> Client:
    """Returns the clients [C] that train, as NumPy arrays without private state.

    num_classes: K, or 0 if the examples are not divided into classes.
    """
    count: Any = np.asarray(federation.train.count)
    id: Any = np.arange(len(count), dtype=np.int32)
    n = count.astype(np.float32)
    return Client(
        id=id,
        n=n,
        weight=n / np.float32(count.sum()),
        label_count=_label_counts(federation.train, np.asarray(federation.y), num_classes),
        private=(),
        num_clients=np.full_like(n, len(n)),
        mean_n=np.full_like(n, count.mean()),
        traits=select_traits(federation, slice(len(n))),
    )


def new_on_host(federation: Federation, num_classes: int) -> Client | None:
    """Returns the new clients [N] as NumPy arrays, or None if the federation has none.

    Their ids follow those of the population, so that no other client has the same random numbers.
    Their weight is 0. num_classes: as for `population_on_host`.
    """
    if federation.new_train is None:
        return None
    count: Any = np.asarray(federation.train.count)
    new = population_on_host(federation._replace(train=federation.new_train), num_classes)
    n: Any = new.n
    return new._replace(
        id=new.id + np.int32(len(count)),
        weight=np.zeros_like(n),
        num_clients=np.full_like(n, len(count)),
        mean_n=np.full_like(n, count.mean()),
        traits=select_traits(federation, slice(len(count), None)),
    )


def select_traits(federation: Federation, clients: slice) -> dict[str, Any]:
    """Returns the traits of these clients, a slice of all C + N: the new clients come last."""
    return jax.tree.map(lambda a: a[clients], federation.traits)


def _label_counts(rows, y, num_classes):
    """Counts the examples of each class of each client, [C, K], some clients at a time."""
    if not num_classes:
        return NoCounts()
    start, count, held = (np.asarray(a) for a in (rows.start, rows.count, rows.list))
    out = np.empty((len(rows), num_classes), np.float32)
    for begin in range(0, len(rows), PIECE):
        part = slice(begin, begin + PIECE)
        n = count[part]
        client = np.repeat(np.arange(len(n)), n)
        place = np.arange(len(client)) + np.repeat(start[part] - (np.cumsum(n) - n), n)
        cell = client * num_classes + y[held[place]]
        out[part] = np.bincount(cell, minlength=len(n) * num_classes).reshape(-1, num_classes)
    return out
