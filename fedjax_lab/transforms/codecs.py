"""Codecs that encode an update in fewer bytes and decode it again.

u is the update, with d numbers, and v is its reference plus u: the values that the receiver needs.
Codecs that send some numbers unchanged send those of v, so that nothing is rounded where all
numbers are sent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import sampling
from fedjax_lab.types import Array, PyTree

Leaves = list[Array]  # the leaves of an update, in the order of the upload's leaves


class Codec(NamedTuple):
    """An encoder and its decoder. The shapes of a code depend only on the shapes of the update."""

    encode: Callable[[Leaves, Leaves, Array], PyTree]  # (u, v, key) -> code
    decode: Callable[[PyTree, Leaves], Leaves]  # (code, reference) -> decoded v


class Form(NamedTuple):
    """The structure of a tree that is sent. Both sides know it, so it is never sent."""

    structure: jax.tree_util.PyTreeDef
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    kept: tuple[bool, ...]  # which leaves are sent unchanged


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Coded:
    """A message or an upload as it is sent: the code of some leaves, and the other leaves."""

    code: PyTree
    kept: list[Array]
    form: Form = field(metadata={"static": True})

    @property
    def zeros(self) -> Leaves:
        """Zeros in the shapes of the leaves that are encoded."""
        pairs = zip(self.form.leaves, self.form.kept, strict=True)
        return [jnp.zeros(a.shape, a.dtype) for a, kept in pairs if not kept]

    def joined(self, decoded: Leaves) -> PyTree:
        """The tree with these leaves in the places of those that are encoded."""
        unchanged, new = iter(self.kept), iter(decoded)
        pairs = zip(self.form.leaves, self.form.kept, strict=True)
        leaves = [next(unchanged) if kept else next(new).astype(a.dtype) for a, kept in pairs]
        return jax.tree.unflatten(self.form.structure, leaves)


def coded(tree: PyTree, kept: Sequence[bool], encode: Callable[[Leaves], PyTree]) -> Coded:
    """The tree as it is sent. kept: which leaves are sent unchanged; encode: of all others."""
    leaves, structure = jax.tree.flatten(tree)
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves)
    pairs = list(zip(leaves, kept, strict=True))
    changed = [a for a, is_kept in pairs if not is_kept]
    code = encode(changed) if changed else ()
    unchanged = [a for a, is_kept in pairs if is_kept]
    return Coded(code, unchanged, Form(structure, shapes, tuple(kept)))


def top_k(share: float) -> Codec:
    """Sends the numbers of v where |u| is largest, and their places; ties go to the first."""

    def encode(u, v, key):
        flat = _flat(u)
        _, at = jax.lax.top_k(jnp.abs(flat), count(share, flat.size))
        return _flat(v)[at], at.astype(index_type(flat.size))

    def decode(sent, reference):
        values, at = sent
        return _like(_flat(reference).at[at].set(values), reference)

    return Codec(encode, decode)


def random_k(share: float) -> Codec:
    """Sends the numbers of v at uniformly random places, and the seed of the places."""

    def places(seed, size):
        return sampling.without_replacement(jax.random.key(seed), size, count(share, size))

    def encode(u, v, key):
        flat, seed = _flat(v), jax.random.bits(key, (), jnp.uint32)
        return flat[places(seed, flat.size)], seed

    def decode(sent, reference):
        (values, seed), flat = sent, _flat(reference)
        return _like(flat.at[places(seed, flat.size)].set(values), reference)

    return Codec(encode, decode)


def quantized(bits: int, scale_of: Callable[[Array], Array]) -> Codec:
    """Sends a scale for each leaf and a level for each number, from -s to s, s = 2^(bits-1) - 1.

    |u| s / scale is rounded up with a probability equal to its fractional part, so that the decoded
    update has the expectation u.

    scale_of: leaf -> an upper bound of the absolute values in the leaf.
    """
    s = 2 ** (bits - 1) - 1

    def encode_leaf(u, key):
        scale = scale_of(u)
        ratio = jnp.abs(u) / jnp.where(scale > 0, scale, 1) * s
        level = jnp.minimum(jnp.floor(ratio + jax.random.uniform(key, u.shape)), s)
        return pack((jnp.sign(u) * level + s).astype(jnp.uint8), bits), scale

    def encode(u, v, key):
        return [encode_leaf(a, k) for a, k in zip(u, jax.random.split(key, len(u)), strict=True)]

    def read(sent, reference):
        codes, scale = sent
        level = unpack(codes, bits, reference.size).astype(reference.dtype) - s
        return reference + (scale / s * level).reshape(reference.shape)

    return Codec(encode, lambda sent, reference: list(map(read, sent, reference)))


def sign() -> Codec:
    """Sends the signs of each leaf, with a plus for 0, and the mean of |u|."""

    def encode(u, v, key):
        return [(pack((a >= 0).astype(jnp.uint8), 1), jnp.mean(jnp.abs(a))) for a in u]

    def read(sent, reference):
        codes, scale = sent
        signs = unpack(codes, 1, reference.size).astype(reference.dtype) * 2 - 1
        return reference + (scale * signs).reshape(reference.shape)

    return Codec(encode, lambda sent, reference: list(map(read, sent, reference)))


def low_rank(rank: int, iterations: int) -> Codec:
    """Sends two factors P [n, r] and Q [m, r] of each leaf, reshaped to a matrix [n, m].

    P is the orthonormal basis after `iterations` of subspace iteration from a random Q, and
    Q = u^T P. m is the leaf's last axis: a layer's outputs. A leaf with at most as many numbers as
    its factors is sent unchanged.
    """

    def encode_leaf(u, v, key):
        if not _is_shortened(u, rank):
            return v
        matrix = u.reshape(-1, u.shape[-1])
        Q = jax.random.normal(key, (matrix.shape[1], rank), u.dtype)
        for _ in range(iterations):
            P, _ = jnp.linalg.qr(_times(matrix, Q))
            Q = _times(matrix.T, P)
        return P, Q

    def encode(u, v, key):
        keys = jax.random.split(key, len(u))
        return [encode_leaf(*leaf) for leaf in zip(u, v, keys, strict=True)]

    def read(sent, reference):
        if not _is_shortened(reference, rank):
            return sent
        P, Q = sent
        return reference + _times(P, Q.T).reshape(reference.shape)

    return Codec(encode, lambda sent, reference: list(map(read, sent, reference)))


def count(share: float, size: int) -> int:
    """Returns how many of `size` numbers the share is, rounded and at least one."""
    return max(1, round(share * size))


def index_type(size: int) -> jnp.dtype:
    """Returns the smallest unsigned type that holds the places of `size` numbers."""
    return jnp.dtype(jnp.uint16 if size <= 1 << 16 else jnp.uint32)


def pack(codes: Array, bits: int) -> Array:
    """Packs n integers below 2^bits into bytes [ceil(n bits / 8)], from the lowest bits upward."""
    in_byte = 8 // bits
    flat = jnp.pad(codes.ravel(), (0, -codes.size % in_byte)).reshape(-1, in_byte)
    return jnp.sum(flat << _shifts(bits), axis=1, dtype=jnp.uint8)


def unpack(packed: Array, bits: int, size: int) -> Array:
    """Returns the first `size` of the packed integers."""
    codes = (packed[:, None] >> _shifts(bits)) & jnp.uint8(2**bits - 1)
    return codes.ravel()[:size]


def _shifts(bits):
    return jnp.arange(0, 8, bits, dtype=jnp.uint8)


def _is_shortened(leaf, rank):
    n = leaf.size // leaf.shape[-1] if leaf.ndim > 1 else 1
    return leaf.ndim > 1 and rank * (n + leaf.shape[-1]) < leaf.size


def _times(a, b):
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _flat(leaves):
    return jnp.concatenate([leaf.ravel() for leaf in leaves])


def _like(flat, leaves):
    parts = jnp.split(flat, list(_ends(leaves))[:-1])
    return [p.reshape(a.shape).astype(a.dtype) for p, a in zip(parts, leaves, strict=True)]


def _ends(leaves):
    end = 0
    for leaf in leaves:
        end += leaf.size
        yield end
