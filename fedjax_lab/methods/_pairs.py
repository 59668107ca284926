"""Numbers that a server keeps for each pair of clients."""

import jax
import jax.numpy as jnp

from fedjax_lab.types import Array, PyTree


def distances(many: PyTree, one: PyTree) -> Array:
    """Returns the squared distances [C] of many trees, with leaves [C, ...], to one tree."""

    def leaf_distances(a, b):
        apart = a.astype(jnp.float32) - b.astype(jnp.float32)
        return jnp.sum(apart**2, tuple(range(1, a.ndim)))

    return sum(jax.tree.leaves(jax.tree.map(leaf_distances, many, one)), jnp.float32(0))
