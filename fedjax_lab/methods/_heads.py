"""Linear heads, and layer normalization outside of the model, for methods that add their own."""

import jax
import jax.numpy as jnp

from fedjax_lab import tree
from fedjax_lab.types import Array, PyTree, Task, Weights

EPSILON = 1e-5  # of PyTorch's LayerNorm


def logits(head: PyTree, h: Array) -> Array:
    """Returns the logits [B, K] of features h [B, D]; the head may have no bias."""
    return jnp.dot(h, head["kernel"], precision="highest") + head.get("bias", 0.0)


def with_head(w: Weights, head: PyTree) -> Weights:
    """Returns w with another head."""
    return w._replace(params={**w.params, "head": head})


def whole(task: Task, body: Weights) -> Weights:
    """Returns a body, the model without its head, with a head of zeros that is not used."""
    zeros = tree.zeros(jax.eval_shape(task.init, jax.random.key(0)))
    return tree.join(body, tree.split(tree.within((task.head,)), zeros)[0])


def first_norm(features: int) -> dict[str, Array]:
    """Initial weights of a layer normalization."""
    return {"scale": jnp.ones(features), "shift": jnp.zeros(features)}


def normalized(weights: dict[str, Array], x: Array) -> Array:
    """Applies a layer normalization to x [..., D]."""
    centered = x - jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(centered**2, -1, keepdims=True)
    return centered / jnp.sqrt(variance + EPSILON) * weights["scale"] + weights["shift"]
