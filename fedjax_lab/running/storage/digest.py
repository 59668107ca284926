"""Computes digests of arrays sharded over many devices and processes, without gathering them.

Each word of an array, of at most 32 bits, is mixed with a number that depends only on its
coordinates, and the results are added modulo 2**32. The sum is the same for any sharding, because
each device adds the words that it holds. A word of zero bits adds 0, so zeros appended to an axis
change nothing. A change of one word always changes the sum. A change of several words leaves both
of the two sums unchanged with a probability of only about 2**-64.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

SALTS = 0x243F6A88, 0x13198A2E  # one for each sum
PIECE = 1 << 18  # entries digested at a time on the host; only larger arrays use the devices


def digests(arrays: list) -> list[str]:
    """The digest of each array, of JAX or NumPy, as 16 hexadecimal digits.

    It depends on the array's position in the list. All processes must call this function.
    """
    sums = [_on_devices(a, i) if _is_spread(a) else _on_host(a, i) for i, a in enumerate(arrays)]
    return ["".join(f"{int(part):08x}" for part in both) for both in sums]


def _is_spread(array):
    if not isinstance(array, jax.Array):
        return False
    return array.size > PIECE or not (array.is_fully_addressable or array.is_fully_replicated)


def _on_devices(array, number):
    """Both sums of an array, computed on the devices; all processes get the result."""
    named = isinstance(array.sharding, NamedSharding)
    everywhere = NamedSharding(array.sharding.mesh, P()) if named else None
    return jax.device_get(_program(everywhere)(array, np.uint32(number)))


@cache
def _program(sharding):
    def sums(array, number):
        return [_sum(jnp, array, number, salt) for salt in SALTS]

    return jax.jit(sums, out_shardings=sharding)


def _on_host(array, number):
    """Both sums of an array, computed piece by piece in NumPy."""
    array, number = np.asarray(array), np.uint32(number)
    if array.ndim == 0:
        return [_sum(np, array, number, salt) for salt in SALTS]
    rows = max(1, PIECE // max(1, array[:1].size))
    starts = range(0, len(array), rows)
    pieces = [[_sum(np, array[i : i + rows], number, salt, i) for salt in SALTS] for i in starts]
    return [sum(int(part) for part in parts) % 2**32 for parts in zip([0, 0], *pieces, strict=True)]


def _sum(xp, array, number, salt, start=0):
    """One sum of array `number`, whose leading axis begins at `start`; xp: numpy or jax.numpy."""
    words = _words(xp, array)
    place = _mix(xp, xp.uint32(salt) ^ _mix(xp, xp.atleast_1d(number)))
    for axis, length in enumerate(words.shape):
        first = salt + 0x9E3779B9 * (axis + 1) + (start if axis == 0 else 0)  # axes are far apart
        keys = _mix(xp, xp.arange(length, dtype=xp.uint32) + xp.uint32(first % 2**32))
        place = place + keys.reshape([length if i == axis else 1 for i in range(words.ndim)])
    return xp.sum(_mix(xp, words + place) - _mix(xp, place), dtype=xp.uint32)


def _words(xp, array):
    """The bits of an array as unsigned integers, [..., words of an entry]."""
    if array.dtype == bool:
        array = array.astype(xp.uint8)
    size = array.dtype.itemsize
    kind = {1: xp.uint8, 2: xp.uint16}.get(size, xp.uint32)
    if xp is np:
        words = np.asarray(array, order="C")[..., None].view(kind)
    elif jnp.issubdtype(array.dtype, jnp.complexfloating):
        parts = jnp.stack([array.real, array.imag], -1)
        words = jax.lax.bitcast_convert_type(parts, kind).reshape(*array.shape, size // 4)
    else:
        words = jax.lax.bitcast_convert_type(array, kind).reshape(*array.shape, -(-size // 4))
    return words.astype(xp.uint32)


def _mix(xp, x):
    """The finalizer of MurmurHash3, a permutation of 32-bit integers that mixes all bits."""
    x = (x ^ (x >> xp.uint32(16))) * xp.uint32(0x85EBCA6B)
    x = (x ^ (x >> xp.uint32(13))) * xp.uint32(0xC2B2AE35)
    return x ^ (x >> xp.uint32(16))
