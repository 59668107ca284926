"""Losses on one padded batch. Each is a mean over the real examples."""

from collections.abc import Callable

import jax.numpy as jnp
import optax

from fedjax_lab.types import Array, Batch, Output, Task, Weights

# (weights, batch, key) -> (value, out). Training goes on with the running statistics `out.stats`:
# out is the forward pass's Output, or the weights themselves of a model that has none.
Loss = Callable[[Weights, Batch, Array | None], tuple[Array, Output | Weights]]


def masked_mean(values: Array, mask: Array) -> Array:
    """Mean of values [B, ...] over the rows where mask [B] is 1; 0 if it is 1 nowhere."""
    rows = mask.reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.sum(values * rows, 0) / jnp.maximum(jnp.sum(mask), 1.0)


def cross_entropy(logits: Array, batch: Batch) -> Array:
    """Mean of logsumexp(o) - o_y over the real examples; logits o [B, K]."""
    return masked_mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch.y), batch.mask)


def unit(rows: Array) -> Array:
    """The rows [., F] with norm 1; those shorter than 1e-8 stay shorter."""
    return rows / jnp.sqrt(jnp.maximum(jnp.sum(rows * rows, -1, keepdims=True), 1e-16))


def cosine(a: Array, b: Array) -> Array:
    """Cosine similarity of the rows of a and b, [B, D] each -> [B]; each norm is at least 1e-8."""
    return jnp.sum(unit(a) * unit(b), -1)


def risk(task: Task) -> Loss:
    """F_i, the empirical risk that every method starts from: (w, batch, key) -> (value, out).

    A key means training mode; without one the model is only measured.
    """

    def value(w, batch, key=None):
        out = task.apply(w, batch.x, key, batch.mask)
        return cross_entropy(out.logits, batch), out

    return value
