"""Strategies that run a function for every client on one device. All give the same results."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, Sharding

from fedjax_lab import tree
from fedjax_lab.types import Array, Federation, PyTree, Rows


class Strategy(NamedTuple):
    """A way to run the clients of a cohort.

    `each` and `everyone` take a function for one client, fn(shared, federation, rows, entry), and
    return run(shared, federation, rows, stacked) for many. `shared` is the same for all clients.
    `rows`, a tree of arrays [N], are the rows of the federation that the client may use. `entry` is
    the client's entry of the leading axis of `stacked`.

    If the size of a population is not a multiple of the number of devices, `stacked` has padding
    after the last client, whose results are not used.
    """

    name: str
    each: Callable[[Callable], Callable]  # (fn) -> run for a cohort; rows [M, N], stacked [M]
    everyone: Callable[[Callable, int], Callable]
    # (fn, size) -> run for all [C], at most `size` at a time; rows: `Rows`, or arrays [C, N]
    deal: Callable[[Array], Array]  # steps [M] -> the order [M] of the clients
    lane_steps: Callable[[Array], Array]  # steps [M] in this order -> number of executed steps
    one_by_one: bool = False  # clients run one after another, so that skipping one costs nothing
    whole: Callable[[PyTree], PyTree] = lambda drawn: drawn  # computed on every device
    take: Callable[[PyTree, Array], PyTree] = lambda stacked, ids: _take(stacked, ids)
    # (arrays of clients [C, ...], ids [M]) -> [M, ...]; for `Rows` [M, N]
    put: Callable[[PyTree, Array, PyTree], PyTree] = tree.put  # the inverse, for arrays
    collect: Callable[[Federation, Array], tuple[Federation, Array]] = lambda *pool: pool
    # (federation, rows [...]) -> (a federation with these rows on all devices, rows in it)
    sharding: Sharding | None = None  # of arrays that every device has; None: the default device
    by_client: NamedSharding | None = None  # of arrays of clients; None: as `sharding`
    by_row: NamedSharding | None = None  # of the pool of examples; None: as `sharding`
    group: int = 1  # number of devices that hold a model together: see `fsdp`
    at_a_time: int = 0  # the most clients that a device, or a group, trains at a time; 0: all


def _take(stacked, ids):
    return jax.tree.map(lambda a: a[ids], stacked, is_leaf=is_rows)


def vectorized() -> Strategy:
    """All clients at once on one device; each takes as many steps as the longest client."""

    def each(fn):
        return jax.vmap(fn, (None, None, 0, 0))

    def lane_steps(steps):
        return steps.shape[0] * jnp.max(steps)

    return Strategy("vectorized", each, in_groups(each), _as_they_come, lane_steps)


def sequential() -> Strategy:
    """One client after another, without masked steps."""

    def each(fn):
        def run(shared, federation, rows, stacked):
            return jax.lax.map(lambda client: fn(shared, federation, *client), (rows, stacked))

        return run

    everyone = in_groups(each)
    strategy = Strategy("sequential", each, everyone, _as_they_come, jnp.sum, one_by_one=True)
    return strategy._replace(at_a_time=1)


def chunked(size: int) -> Strategy:
    """At most `size` clients at a time, sorted by steps; a chunk takes the steps of its longest."""

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
        at_a_time=size,
    )


def in_groups(each):
    """An `everyone` that runs the clients in groups with this `each`."""

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
    """[M, ...] in the smallest number of equal groups of at most `size` entries: [G, g, ...]."""
    groups = -(-len(a) // size)
    length = -(-len(a) // groups)
    return fill(a, length).reshape(groups, length, *a.shape[1:])


def length(stacked):
    return jax.tree.leaves(stacked)[0].shape[0]


def fill(a, multiple):
    """[M, ...] padded to a multiple by repeating the last entry (the shortest client if sorted)."""
    missing = -a.shape[0] % multiple
    return jnp.concatenate([a, jnp.repeat(a[-1:], missing, axis=0)]) if missing else a


def filled(a, multiple):
    """The tree with each array padded by `fill`, except `Rows`, which are unchanged."""
    return jax.tree.map(lambda a: a if is_rows(a) else fill(a, multiple), a, is_leaf=is_rows)


def is_rows(a):
    return isinstance(a, Rows)


def unless_copy(fn: Callable) -> Callable:
    """A version of fn for pairs (flag, entry), which returns zeros if the flag marks a copy."""
    fn = jax.jit(fn, inline=True)  # the shapes of its results and the branch share one trace

    def run(shared, federation, rows, flagged):
        is_copy, entry = flagged
        out = jax.eval_shape(fn, shared, federation, rows, entry)
        return jax.lax.cond(
            is_copy, lambda: tree.zeros(out), lambda: fn(shared, federation, rows, entry)
        )

    return run


def _as_they_come(steps):
    return jnp.arange(steps.shape[0])


def longest_first(steps):
    return jnp.argsort(-steps, stable=True)
