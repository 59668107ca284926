"""What clients of several kinds keep, as records of bytes of one size: that of the largest kind.

Arrays are in NumPy, with the bits of random keys in place of keys (`host_state.to_bits`). `like` is
the shapes of what all clients keep, with the numbers of their kinds: see `numbered`.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedjax_lab.engine.host.assignment import Owners
from fedjax_lab.simulation.by_kind import ByKind, EachKind, is_by_kind, map_kinds
from fedjax_lab.types import PyTree


def numbered(shapes: PyTree, traits: dict[str, Any]) -> PyTree:
    """The shapes of what all clients keep, with the numbers of their kinds in each `ByKind`."""
    return map_kinds(lambda a: replace(a, kind=traits["kind"].number[: a.kind.shape[0]]), shapes)


def stored_shapes(like: PyTree) -> PyTree:
    """The shapes of what is stored: records [C, bytes] in place of each `ByKind`."""
    return map_kinds(lambda a: jax.ShapeDtypeStruct((len(a.kind), _size(a)), np.uint8), like)


def packed(entries: PyTree, like: PyTree, ids: np.ndarray) -> PyTree:
    """Returns the entries of clients `ids` [N] with records in place of each `ByKind`.

    An `EachKind` with a state of every kind for each client may be in its place.
    """

    def one(like, a):
        if not is_by_kind(like):
            return a
        place = np.arange(len(ids)) if isinstance(a, EachKind) else np.asarray(a.place)
        return _pack(a.states, like.kind[ids], place, _size(like))

    return jax.tree.map(one, like, entries, is_leaf=is_by_kind)


def unpacked(entries: PyTree, like: PyTree, ids: np.ndarray) -> PyTree:
    """The inverse of `packed`. Clients may be repeated in `ids`; the shapes depend only on N."""

    def one(like, a):
        return _unpack(a, like, ids) if is_by_kind(like) else a

    return jax.tree.map(one, like, entries, is_leaf=is_by_kind)


def in_segment(entries: PyTree, owners: Owners) -> PyTree:
    """Returns this process's entries with their places among the entries of all processes.

    The places for the clients of a kind are filled up to a multiple of the devices.
    """

    def filled(x):
        return np.pad(x, [(0, owners.even(len(x)) - len(x)), *[(0, 0)] * (x.ndim - 1)])

    def one(a):
        a = replace(a, states=jax.tree.map(filled, a.states))
        return replace(a, place=a.place + _first_places(a, owners))

    return map_kinds(one, entries)


def out_of_segment(entries: PyTree, owners: Owners) -> PyTree:
    """The inverse of `in_segment`, which keeps the places that were filled up."""
    return map_kinds(lambda a: replace(a, place=a.place - _first_places(a, owners)), entries)


def _first_places(a, owners):
    """The first place of this process for the kind of each client [N]."""
    rooms = [max(map(len, jax.tree.leaves(state)), default=0) for state in a.states]
    return owners.process * np.array(rooms, np.int32)[np.asarray(a.kind)]


def _size(like):
    """The bytes of a record."""
    return max(sum(end - begin for begin, end, _ in _fields(state)) for state in like.states)


def _fields(state) -> Iterator[tuple[int, int, Any]]:
    """For each array of a state [C_k, ...]: where its bytes begin and end in a record, and it."""
    end = 0
    for leaf in jax.tree.leaves(state):
        begin, end = end, end + math.prod(leaf.shape[1:]) * np.dtype(leaf.dtype).itemsize
        yield begin, end, leaf


def _pack(states, kind, place, size):
    records = np.zeros((len(kind), size), np.uint8)
    for k, state in enumerate(states):
        at = np.flatnonzero(kind == k)
        for begin, end, leaf in _fields(state) if len(at) else ():
            rows = np.ascontiguousarray(np.asarray(leaf)[place[at]]).reshape(len(at), -1)
            records[at, begin:end] = rows.view(np.uint8)
    return records


def _unpack(records, like, ids):
    distinct, first, of_each = np.unique(ids, return_index=True, return_inverse=True)
    kind, place = like.kind[distinct], np.zeros(len(distinct), np.int32)
    states = []
    for k, state in enumerate(like.states):
        mine = np.flatnonzero(kind == k)
        place[mine] = np.arange(len(mine))
        room, leaves = min(like.most[k], len(ids)), []
        for begin, end, leaf in _fields(state):
            made = np.zeros((room, *leaf.shape[1:]), leaf.dtype)
            rows = np.ascontiguousarray(records[first[mine], begin:end])
            made[: len(mine)] = rows.view(leaf.dtype).reshape(len(mine), *leaf.shape[1:])
            leaves.append(made)
        states.append(jax.tree.unflatten(jax.tree.structure(state), leaves))
    return ByKind(tuple(states), kind[of_each], place[of_each], like.most)
