"""How one function runs for every client on one device. All strategies give the same numbers."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, Sharding

from fedjax_lab import tree
from fedjax_lab.types import Array, Federation, PyTree, Rows


class Strategy(NamedTuple):
    """A way to run a cohort.

    `each` and `everyone` take a function written for one client, fn(shared, federation, rows,
    entry), and give run(shared, federation, rows, stacked). `shared` is for all clients alike; what
    the client may look at is `rows` (a tree of arrays [N] of rows of this federation), and `entry`
    is its entry of the leading axis of `stacked`.

    Of a population whose number the devices do not divide, `stacked` has entries beyond the last
    client, whose results mean nothing.
    """

    name: str
    each: Callable[[Callable], Callable]  # (fn) -> run for a cohort; rows [M, N], stacked [M]
    everyone: Callable[[Callable, int], Callable]
    # (fn, size) -> run for all [C], at most `size` at a time; rows: `Rows`, or arrays [C, N]
    deal: Callable[[Array], Array]  # steps [M] -> the order [M] in which to line the clients up
    lane_steps: Callable[[Array], Array]  # steps [M] so ordered -> steps that are executed
    one_by_one: bool = False  # clients run one after another, so that one can be left out for free
    split: Callable[[PyTree], PyTree] = lambda rows: rows  # as `Exchange.alone` is given it
    take: Callable[[PyTree, Array], PyTree] = lambda stacked, ids: _take(stacked, ids)
    # (what is kept by client [C, ...], ids [M]) -> [M, ...]; of `Rows` [M, N]
    put: Callable[[PyTree, Array, PyTree], PyTree] = tree.put  # the inverse, for arrays
    take_any: Callable[[PyTree, Array], PyTree] = lambda stacked, ids: _take(stacked, ids)
    # as `take`, of clients that `draw` has not drawn
    draw: Callable[[Callable], Callable] = lambda sample: sample  # what is used of `Method.sample`
    collect: Callable[[Federation, Array], tuple[Federation, Array]] = lambda *pool: pool
    # (federation, rows [...]) -> a federation that all devices have, with these rows; the rows
    arrange: Callable[[Federation], Federation] = lambda federation: federation
    # (NumPy arrays of one seed) -> the same with the pool in the order in which devices hold it
    sharding: Sharding | None = None  # of what every device has; None: the default device
    by_client: NamedSharding | None = None  # of what is kept by client, where that is another one
    by_row: NamedSharding | None = None  # of the pool of examples, where that is another one
    group: int = 1  # devices that hold a model together: see `fsdp`


def _take(stacked, ids):
    return jax.tree.map(lambda a: a[ids], stacked, is_leaf=is_rows)


def vectorized() -> Strategy:
    """All clients at once on one device: each runs for as long as the longest."""

    def each(fn):
        return jax.vmap(fn, (None, None, 0, 0))

    def lane_steps(steps):
        return steps.shape[0] * jnp.max(steps)

    return Strategy("vectorized", each, in_groups(each), _as_they_come, lane_steps)


def sequential() -> Strategy:
    """One client after another: no step is wasted."""

    def each(fn):
        def run(shared, federation, rows, stacked):
            return jax.lax.map(lambda client: fn(shared, federation, *client), (rows, stacked))

        return run

    everyone = in_groups(each)
    return Strategy("sequential", each, everyone, _as_they_come, jnp.sum, one_by_one=True)


def chunked(size: int) -> Strategy:
    """At most `size` clients at a time, sorted: a chunk ends with its own longest client."""

    def lane_steps(steps):
        lanes = _groups(steps, size)
        return lanes.shape[1] * jnp.sum(jnp.max(lanes, axis=1))

    everyone = vectorized().everyone
    return Strategy(
        name=f"chunked({size})",
        each=lambda fn: everyone(fn, size),
        everyone=lambda fn, at_most: everyone(fn, min(size, at_most)),
        deal=longest_first,
        lane_steps=lane_steps,
    )


def in_groups(each):
    """An `everyone` that runs groups of clients with this `each`."""

    def everyone(fn, size):
        def run(shared, federation, rows, stacked):
            def group(clients):
                places, stacked = clients
                return each(fn)(shared, federation, _take(rows, places), stacked)

            m = length((stacked, rows))
            if m <= size:
                return group((jnp.arange(m), stacked))
            groups = jax.tree.map(lambda a: _groups(a, size), (jnp.arange(m), stacked))
            out = jax.lax.map(group, groups)
            return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:m], out)

        return run

    return everyone


def _groups(a, size):
    """[M, ...] in as few groups of at most `size` as there can be, of one length: [G, g, ...]."""
    groups = -(-len(a) // size)
    length = -(-len(a) // groups)
    return fill(a, length).reshape(groups, length, *a.shape[1:])


def length(stacked):
    return jax.tree.leaves(stacked)[0].shape[0]


def fill(a, multiple):
    """[M, ...] made a multiple long by repeating the last entry (if sorted, the shortest)."""
    missing = -a.shape[0] % multiple
    return jnp.concatenate([a, jnp.repeat(a[-1:], missing, axis=0)]) if missing else a


def filled(a, multiple):
    """The tree with each array so filled, but not what is in a `Rows`."""
    return jax.tree.map(lambda a: a if is_rows(a) else fill(a, multiple), a, is_leaf=is_rows)


def is_rows(a):
    return isinstance(a, Rows)


def _as_they_come(steps):
    return jnp.arange(steps.shape[0])


def longest_first(steps):
    return jnp.argsort(-steps, stable=True)
