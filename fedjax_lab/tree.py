"""Arithmetic on pytrees, and functions that select leaves by their names."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_lab.types import Array, PyTree


def mix(weight: Array, trees: PyTree) -> PyTree:
    """Returns the weighted sums of the clients' trees.

    Args:
      weight: [M] for one sum, or [K, M] for K sums.
      trees: leaves [M, ...], one entry for each client.

    Returns:
      A tree with leaves [...], or [K, ...] for K sums.
    """
    full = jax.lax.Precision.HIGHEST  # no TF32, no bfloat16
    return jax.tree.map(
        lambda a: jnp.tensordot(weight.astype(a.dtype), a, axes=1, precision=full), trees
    )


def dot(a: PyTree, b: PyTree) -> Array:
    """Returns the inner product over all leaves; 0 for trees without leaves."""
    total: Any = sum(jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)))
    return total


def inner_products(trees: PyTree) -> Array:
    """Returns the inner products [M, M] of all pairs of trees, from leaves [M, ...]."""

    def leaf_products(a):
        rows = a.reshape(len(a), -1)
        return jnp.dot(rows, rows.T, precision=jax.lax.Precision.HIGHEST)

    total: Any = sum(map(leaf_products, jax.tree.leaves(trees)))
    return total


def sq_norm(a: PyTree) -> Array:
    """Squared Euclidean norm over all leaves; its gradient is finite at 0."""
    return dot(a, a)


def add(a: PyTree, b: PyTree, scale: float | Array = 1.0) -> PyTree:
    """Returns a + scale * b, leaf by leaf."""
    return jax.tree.map(lambda x, y: x + scale * y, a, b)


def zeros(a: PyTree) -> PyTree:
    """Zeros with the shapes and types of `a`, whose leaves are arrays or `ShapeDtypeStruct`s."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), a)


def repeat(a: PyTree, count: int) -> PyTree:
    """Returns `count` copies of each leaf along a new leading axis: leaves [count, ...]."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), a)


def take(a: PyTree, ids: Array | int) -> PyTree:
    """Entries `ids` of the leading axis; for a single number, that entry without the axis."""
    return jax.tree.map(lambda x: jnp.asarray(x)[ids], a)


def put(a: PyTree, ids: Array, new: PyTree) -> PyTree:
    """`a` with the entries `ids` of the leading axis replaced."""
    return jax.tree.map(lambda x, y: x.at[ids].set(y), a, typed_like(new, a))


def where(condition: Array, a: PyTree, b: PyTree) -> PyTree:
    """Each leaf of `a` where the condition, [] or [M], is true, and of `b` elsewhere."""

    def pick(x, y):
        wide = condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim))
        return jnp.where(wide, x, y)

    return jax.tree.map(pick, a, b)


def typed_like(a: PyTree, like: PyTree) -> PyTree:
    """`a` with each floating-point leaf cast to its type in `like`, as JAX's loops require."""

    def cast(x, y):
        floats = all(jnp.issubdtype(z.dtype, jnp.floating) for z in (x, y))
        return x.astype(y.dtype) if floats else x

    return jax.tree.map(cast, a, like)


def finite(a: PyTree) -> Array:
    """Whether every number in the tree is finite."""
    leaves = [x for x in jax.tree.leaves(a) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in leaves] or [True]))


def is_key(a: Any) -> bool:
    """Whether an array holds typed random keys, which NumPy arrays and files cannot hold."""
    dtype: Any = getattr(a, "dtype", None)
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def num_bytes(a: PyTree) -> int:
    """The number of bytes of all leaves, which are arrays or `ShapeDtypeStruct`s."""
    return sum(-(-x.size * _bits(x.dtype) // 8) for x in jax.tree.leaves(a))


def _bits(dtype) -> int:
    """The bits of a number; some integers have fewer than a byte."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits
    return 8 * dtype.itemsize


def names(a: PyTree) -> list[str]:
    """The path of each leaf, such as 'params/Dense_0/kernel'."""
    return [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(a)]


def by_name(a: PyTree) -> dict[str, Any]:
    """The leaves by their paths, in their order."""
    return dict(zip(names(a), jax.tree.leaves(a), strict=True))


def map_named(change: Callable[[str, Any], Any], a: PyTree) -> PyTree:
    """The tree with the leaves change(path, leaf)."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: change(_name(path), leaf), a)


def split(which: Callable[[str], bool], a: PyTree) -> tuple[PyTree, PyTree]:
    """Two trees of the same structure: the leaves whose name `which` selects, and the others.

    The leaves of the other tree are None in each. `join` is the inverse.
    """
    chosen = map_named(lambda name, _: bool(which(name)), a)

    def part(keep):
        return jax.tree.map(lambda flag, x: x if flag == keep else None, chosen, a)

    return part(True), part(False)


def within(layers: tuple[str, ...]) -> Callable[[str], bool]:
    """A function for `split` that selects the parameters and running statistics of these layers."""

    def chosen(name):
        _, path = name.split("/", 1)  # params or stats
        return any(path.startswith(layer + "/") for layer in layers)

    return chosen


def join(a: PyTree, b: PyTree) -> PyTree:
    """Returns the tree that `split` divided into `a` and `b`, where missing leaves are None."""
    return jax.tree.map(lambda x, y: y if x is None else x, a, b, is_leaf=lambda x: x is None)


def at(a: PyTree, path: str) -> PyTree:
    """The entry of nested dicts at a path such as 'Dense_0/kernel'."""
    for key in path.split("/"):
        a = a[key if key in a else int(key)]  # NNX numbers the parts of a list
    return a


def _name(path) -> str:
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)
