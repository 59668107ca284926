"""Clients of several kinds, such as with unlike nets, each with its own program and arrays.

What clients keep is a `ByKind` if its arrays differ in shape between kinds; it may be a part of a
larger tree. A function for one client gets its entry as an `OfKind`, whose number of the kind is
static. It is run for the clients of one kind at a time, in groups of one static size, as many as
the cohort needs; its results are joined in the order of the cohort.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import tree
from fedjax_lab.simulation.strategies import Strategy, is_rows, longest_first, unless_copy
from fedjax_lab.types import Array, PyTree

NOWHERE = np.iinfo(np.int32).max  # a place beyond all arrays, to which nothing is written


class EachKind(NamedTuple):
    """What the clients would keep if all were of one kind, for each kind; leaves [C, ...]."""

    states: tuple[PyTree, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OfKind:
    """What a client of this kind keeps; that of several such clients has a leading axis."""

    state: PyTree
    kind: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ByKind:
    """What N clients of several kinds keep."""

    states: tuple[PyTree, ...]  # of the clients of each kind k, leaves [C_k, ...]
    kind: Array  # [N] int32
    place: Array  # [N] int32, where `states[kind]` has that of the client
    most: tuple[int, ...] = field(metadata={"static": True})  # C_k, without padding


def is_by_kind(a: Any) -> bool:
    return isinstance(a, ByKind)


def _is_of_kind(a):
    return isinstance(a, OfKind)


def _is_each_kind(a):
    return isinstance(a, EachKind)


def map_kinds(change: Callable[[ByKind], Any], a: PyTree) -> PyTree:
    """The tree with each `ByKind` in it changed."""
    return jax.tree.map(lambda x: change(x) if is_by_kind(x) else x, a, is_leaf=is_by_kind)


def stored(private: PyTree, traits: Mapping[str, Any]) -> PyTree:
    """The private state of all clients [C], in which each `EachKind` becomes a `ByKind`.

    traits: of these clients, perhaps with padding after the last one; without the trait `kind`
    nothing changes.
    """

    def one(each):
        if not _is_each_kind(each) or "kind" not in traits:
            return each
        most = traits["kind"].most
        kind = traits["kind"].number[: jax.tree.leaves(each)[0].shape[0]]
        states = [
            tree.take(state, jnp.nonzero(kind == k, size=most[k], fill_value=0)[0])
            for k, state in enumerate(each.states)
        ]
        is_kind = (kind[:, None] == jnp.arange(len(most))).astype(jnp.int32)
        place = jnp.sum(is_kind * jnp.cumsum(is_kind, 0), 1) - 1
        return ByKind(tuple(states), kind, place, most)

    return jax.tree.map(one, private, is_leaf=_is_each_kind)


def all_of_kind(stacked: PyTree, kind: int) -> PyTree:
    """The tree with the states of one kind, as an `OfKind`, in place of each `ByKind`."""
    return map_kinds(lambda a: OfKind(a.states[kind], kind), stacked)


def first_kind(private: PyTree) -> PyTree:
    """What one client keeps, as a client of the first kind."""
    return jax.tree.map(
        lambda a: OfKind(a.states[0], 0) if _is_each_kind(a) else a, private, is_leaf=_is_each_kind
    )


def entry(stacked: PyTree, client: int) -> PyTree:
    """The entry of one client of stacked arrays that are not traced."""

    def pick(a):
        if not is_by_kind(a):
            return jnp.asarray(a[client])
        kind = int(a.kind[client])
        return OfKind(tree.take(a.states[kind], int(a.place[client])), kind)

    return jax.tree.map(pick, stacked, is_leaf=is_by_kind)


def take(
    stacked: PyTree, ids: Array, take_bare: Callable[[PyTree, Array], PyTree] = tree.take
) -> PyTree:
    """The entries `ids` [M] of stacked arrays; a `ByKind` keeps the states of all clients.

    take_bare: does so for stacked arrays without a `ByKind`.
    """
    return _with_states(take_bare(_without_states(stacked), ids), stacked)


def replaced(strategy: Strategy, stacked: PyTree, ids: Array, others: PyTree, at: Array) -> PyTree:
    """Stacked arrays whose entries `ids` [M] are replaced by the entries `at` [M] of others.

    Ids beyond the last entry are ignored. strategy: with which the arrays are divided.
    """
    taken = strategy.take(_without_states(others), at)
    replaced_arrays = strategy.put(_without_states(stacked), ids, taken)

    def one(a, other, of_arrays):
        if not is_by_kind(a):
            return of_arrays
        kind = jnp.where(ids < len(a.kind), other.kind[at], -1)
        states = []
        for k, (state, new) in enumerate(zip(a.states, other.states, strict=True)):
            place = jnp.where(kind == k, a.place[ids], NOWHERE)
            source = strategy.take(new, jnp.where(kind == k, other.place[at], 0))
            states.append(strategy.put(state, place, source))
        return replace(a, states=tuple(states))

    return jax.tree.map(one, stacked, others, replaced_arrays, is_leaf=is_by_kind)


def where(chosen: Array, new: PyTree, before: PyTree) -> PyTree:
    """`new` for the clients that are chosen, [N] bool, and `before` for the others."""

    def one(new, before):
        if not is_by_kind(new):
            return tree.where(chosen, new, before)
        pairs = enumerate(zip(new.states, before.states, strict=True))
        return replace(new, states=tuple(pick(new, k, *pair) for k, pair in pairs))

    def pick(a, k, new, before):
        places = jnp.where(a.kind == k, a.place, NOWHERE)

        def choose(x, y):
            mask = jnp.zeros(x.shape[0], bool).at[places].set(chosen, mode="drop")
            return tree.where(mask, x, y)

        return jax.tree.map(choose, new, before)

    return jax.tree.map(one, new, before, is_leaf=is_by_kind)


def deal_kinds(inner: Strategy, devices: int = 1) -> Strategy:
    """The strategy for stacked arrays of which one part may be a `ByKind`.

    devices: among which `inner` divides the clients.

    A group has as many clients as a cohort has of their kind on average, or fewer if `inner` trains
    fewer at a time. What a cohort [M] takes from a `ByKind` has the states of all clients, so that
    no state is copied. Utilization is counted as if there were one kind.
    """

    def each(fn):
        return _dealt(inner, inner.each, devices, NOWHERE, fn)

    def everyone(fn, size):
        return _dealt(inner, lambda fn: inner.everyone(fn, size), devices, size, fn)

    def take_entries(stacked, ids):
        return take(stacked, ids, inner.take)

    def put(stacked, ids, new):
        old, new_entries = _without_states(stacked), _without_states(new)
        return _with_states(inner.put(old, ids, new_entries), new)

    return inner._replace(
        each=each, everyone=everyone, deal=longest_first, take=take_entries, put=put
    )


def _without_states(stacked):
    return map_kinds(lambda a: replace(a, states=()), stacked)


def _with_states(stacked, source):
    """The tree with the states of the tree `source` in each `ByKind`."""

    def one(a, source):
        return replace(a, states=source.states) if is_by_kind(a) else a

    return jax.tree.map(one, stacked, source, is_leaf=is_by_kind)


def _dealt(inner, each, devices, at_most, fn):
    """A version of each(fn), a function of many clients, that runs the kinds one after another."""
    skips = inner.at_a_time == 1 and devices > 1
    run_group = each(unless_copy(fn) if skips else fn)

    def run(shared, federation, rows, stacked):
        parts = [a for a in jax.tree.leaves(stacked, is_leaf=is_by_kind) if is_by_kind(a)]
        if not parts:
            return each(fn)(shared, federation, rows, stacked)
        (held,) = parts

        def run_kind(k, state, at, is_copy):
            of_kind = OfKind(inner.take(state, held.place[at]), k)
            bare = map_kinds(lambda _: None, stacked)
            rows_of, entries = jax.tree.map(
                lambda a: inner.take(a, at) if is_rows(a) else a[at], (rows, bare), is_leaf=is_rows
            )
            entries = jax.tree.map(
                lambda a, entry: of_kind if is_by_kind(a) else entry,
                stacked,
                entries,
                is_leaf=is_by_kind,
            )
            entries = (is_copy, entries) if skips else entries
            return run_group(shared, federation, rows_of, entries)

        return _joined(inner, run_kind, held, _sizes(inner, held, devices, at_most))

    return run


def _sizes(inner, held, devices, at_most):
    """The number of clients in a group of each kind, a multiple of the devices."""
    number = len(held.kind)
    at_most = min(at_most, inner.at_a_time * devices or number)
    shares = [-(-number * most // sum(held.most)) for most in held.most]
    return [-(-min(share, at_most) // devices) * devices for share in shares]


def _joined(inner, run_kind, held, sizes):
    """The results of all clients, in their order.

    run_kind: (kind, its states, positions of clients [size], whether each is a copy [size]) ->
        the results of these clients, with an `OfKind` of the states that they keep, if any.
    """
    number = len(held.kind)
    order = jnp.argsort(held.kind, stable=True)
    used = jnp.bincount(held.kind, length=len(sizes))
    begin = jnp.cumsum(used) - used

    def add(k, size, j, carry):
        joined, state = carry
        # The copies that fill up the last group are on other devices for each kind.
        rank = j * size + (jnp.arange(size) - begin[k]) % size
        is_copy = rank >= used[k]
        at = order[begin[k] + jnp.minimum(rank, used[k] - 1)]
        others, kept = _parted(run_kind(k, state, at, is_copy))
        at, place = (jnp.where(is_copy, NOWHERE, a) for a in (at, held.place[at]))
        joined = jax.tree.map(lambda a, new: a.at[at].set(new, mode="drop"), joined, others)
        return joined, (state if kept is None else inner.put(state, place, kept))

    at, is_copy = jnp.zeros(sizes[0], jnp.int32), jnp.zeros(sizes[0], bool)
    results = jax.eval_shape(partial(run_kind, 0), held.states[0], at, is_copy)
    joined, states = _parted(results)[0], []
    joined = jax.tree.map(lambda a: jnp.zeros((number, *a.shape[1:]), a.dtype), joined)
    for k, size in enumerate(sizes):
        groups, start = -(-used[k] // size), (joined, held.states[k])
        joined, state = jax.lax.fori_loop(0, groups, partial(add, k, size), start)
        states.append(state)
    kept = replace(held, states=tuple(states))
    return jax.tree.map(
        lambda a, of_all: kept if _is_of_kind(a) else of_all,
        results,
        joined,
        is_leaf=_is_of_kind,
    )


def _parted(results):
    """The results without what clients keep, for which they have None; and that, or None."""
    kept = [a for a in jax.tree.leaves(results, is_leaf=_is_of_kind) if _is_of_kind(a)]
    others = jax.tree.map(lambda a: None if _is_of_kind(a) else a, results, is_leaf=_is_of_kind)
    return others, kept[0].state if kept else None
