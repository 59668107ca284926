"""Arrays of clients, and the pool of examples, divided over the `client` axis of a mesh.

Device d of D holds the d-th part of the leading axis, which is padded with zeros to a multiple of
D. All functions except `deal` run inside `jax.shard_map` over that axis; there a
"part" is the part on this device. Numbers are communicated as bits, so that they arrive unchanged.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import tree
from fedjax_lab.simulation.strategies import is_rows
from fedjax_lab.types import POOL, Array, Federation, PyTree, Rows

AXIS = "client"
AT_ONCE = 1 << 28  # bytes that a device prepares for the others at a time


def take(part: PyTree, ids: Array) -> PyTree:
    """This device's share [M / D] of the entries `ids` [M] of the whole arrays.

    M is a multiple of D, and `ids` is the same on all devices. Entries are zeros for negative ids.
    The result for a `Rows` is padded rows.
    """

    def share(a):
        if is_rows(a):
            rows = local(a, len(a), divided=True)[_places(ids, len(a))[0]]
            return _share(rows + 1, ids, len(a)) - 1
        return _share(a[_places(ids, len(a))[0]], ids, len(a))

    return jax.tree.map(share, part, is_leaf=is_rows)


def put(part: PyTree, ids: Array, new: PyTree) -> PyTree:
    """The part after entries `ids` [M] of the whole arrays are replaced.

    new: this device's share of the new entries. Ids that are out of range are ignored.
    """

    def replaced(a, new):
        place, held = _places(ids, a.shape[0])
        gathered = jax.lax.all_gather(_bits(new), AXIS, tiled=True)
        place = jnp.where(held, place, a.shape[0])  # out of range: dropped
        return a.at[place].set(_from_bits(gathered, a), mode="drop")

    return jax.tree.map(replaced, part, new)


def bring(federation: Federation, rows: PyTree) -> tuple[dict[str, Array], PyTree]:
    """Gets the examples of this device's clients from the devices that hold them.

    rows: arrays [m, .] for m clients, -1: padding.

    Returns the pool of each client, as fields of a federation [m, n, ...], where n is the number of
    rows of a client in all arrays together; and the rows as positions in that pool.
    """
    leaves, treedef = jax.tree.flatten(rows)
    together = jnp.concatenate(leaves, axis=1)
    pool = [getattr(federation, name) for name in POOL]
    brought = [_in_pieces(a, together) for a in pool]
    positions = jnp.where(together < 0, -1, jnp.arange(together.shape[1], dtype=jnp.int32))
    ends = np.cumsum([a.shape[1] for a in leaves])[:-1]
    positions = jax.tree.unflatten(treedef, jnp.split(positions, ends, axis=1))
    return dict(zip(POOL, brought, strict=True)), positions


def _in_pieces(a, rows):
    """The entries `rows` [m, n] of a [R, ...], for some clients at a time: [m, n, ...]."""
    clients = rows.shape[0]
    size = math.prod(a.shape[1:]) * a.dtype.itemsize * rows.shape[1] * jax.lax.axis_size(AXIS)
    pieces = min(clients, -(-clients * size // AT_ONCE))
    missing = -clients % pieces
    rows = jnp.pad(rows, ((0, missing), (0, 0)), constant_values=-1).reshape(pieces, -1)
    out = jax.lax.map(lambda r: take(a, jax.lax.all_gather(r, AXIS, tiled=True)), rows)
    return out.reshape(clients + missing, -1, *a.shape[1:])[:clients]


def local(rows: PyTree, clients: int, divided: bool) -> PyTree:
    """The tree with each `Rows` restricted to the clients of this device.

    clients: the number of clients of a device.
    divided: whether `rows` is already this device's part, with `start` counted in the whole list.
    """

    def one(a):
        if not is_rows(a):
            return a
        if divided:
            return replace(a, start=a.start - jax.lax.axis_index(AXIS) * a.list.shape[0])
        ids = jax.lax.axis_index(AXIS) * clients + jnp.arange(clients)
        return replace(a, start=a.start[ids], count=a.count[ids])

    return jax.tree.map(one, rows, is_leaf=is_rows)


def collect(federation: Federation, rows: Array) -> tuple[Federation, Array]:
    """A federation with only these rows, the same on all devices; and the rows' positions in it."""

    def everywhere(a):
        place, held = _places(rows.reshape(-1), a.shape[0])
        bits = _bits(a[place])
        return _from_bits(jax.lax.psum(_zero_unless(held, bits), AXIS), a)

    pool = {name: everywhere(getattr(federation, name)) for name in POOL}
    positions = jnp.arange(rows.size, dtype=jnp.int32).reshape(rows.shape)
    return federation._replace(**pool), jnp.where(rows < 0, -1, positions)


def _places(ids, length):
    """The positions of entries `ids` in a part of this length, and whether the part has them."""
    place = ids - jax.lax.axis_index(AXIS) * length
    held = (ids >= 0) & (place >= 0) & (place < length)
    return jnp.where(held, place, 0), held


def _share(entries, ids, length):
    """This device's share of entries [M], each contributed by the device that holds it."""
    bits = _zero_unless(_places(ids, length)[1], _bits(entries))
    return _from_bits(jax.lax.psum_scatter(bits, AXIS, scatter_dimension=0, tiled=True), entries)


def _zero_unless(held, bits):
    return jnp.where(held.reshape(-1, *(1,) * (bits.ndim - 1)), bits, 0)


def _bits(a):
    """The bits of an array as unsigned integers, which do not change when zeros are added."""
    if tree.is_key(a):
        return jax.random.key_data(a)
    if a.dtype == bool:
        return a.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(a, f"uint{8 * a.dtype.itemsize}")


def _from_bits(bits, like):
    if tree.is_key(like):
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(like))
    if like.dtype == bool:
        return bits.astype(bool)
    return jax.lax.bitcast_convert_type(bits, like.dtype)


def deal(rows_by_seed: Sequence[Rows], devices: int) -> list[Rows]:
    """The rows of each seed in the layout of devices that divide the clients.

    Input and output are NumPy arrays. The number of clients is padded to a multiple of the devices
    with clients without rows, and each device's part of the list has the same length.
    """
    missing = -len(rows_by_seed[0]) % devices
    padded = [(np.pad(a, (0, missing)) for a in (r.start, r.count)) for r in rows_by_seed]
    firsts, counts = zip(*padded, strict=True)
    room = max(int(count.reshape(devices, -1).sum(1).max()) for count in counts)
    each = zip(rows_by_seed, firsts, counts, strict=True)
    return [laid_out(*of_seed, devices, max(room, 1)) for of_seed in each]


def laid_out(rows: Rows, first: Any, count: Any, devices: int, room: int) -> Rows:
    """The rows of some clients, with `room` places in the list for the clients of each device.

    first, count: NumPy arrays: where the rows of each client begin in `rows.list`, and their
    number. The devices divide these clients.
    """
    lines = count.reshape(devices, -1)
    begin = np.cumsum(lines, axis=1) - lines + room * np.arange(devices)[:, None]
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    held: Any = np.full(devices * room, -1, np.int32)
    held[np.repeat(begin, count) + within] = rows.list[np.repeat(first, count) + within]
    return Rows(begin.ravel().astype(np.int32), count.astype(np.int32), held, rows.longest)
