"""Losses of one padded batch. Each is a mean over the examples that are not padding."""

from collections.abc import Callable

import jax.numpy as jnp
import optax

from fedjax_lab.types import Array, Batch, Output, Task, Weights

# (weights, batch, key) -> (value, out). Training continues with the running statistics `out.stats`:
# out is the Output of the forward pass, or weights that hold the new statistics.
Loss = Callable[[Weights, Batch, Array | None], tuple[Array, Output | Weights]]


def masked_mean(values: Array, mask: Array) -> Array:
    """Mean of values [B, ...] over the rows where mask [B] is 1; 0 if there is no such row."""
    rows = mask.reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.sum(values * rows, 0) / jnp.maximum(jnp.sum(mask), 1.0)


def cross_entropy(logits: Array, batch: Batch) -> Array:
    """Mean cross-entropy logsumexp(o) - o_y over the examples of a batch; logits o [B, K]."""
    return masked_mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch.y), batch.mask)


def unit(rows: Array) -> Array:
    """Returns the rows [., F] divided by their norms, where a norm counts as at least 1e-8."""
    return rows / jnp.sqrt(jnp.maximum(jnp.sum(rows * rows, -1, keepdims=True), 1e-16))


def cosine(a: Array, b: Array) -> Array:
    """Cosine similarity of the rows of a and b, [B, D] each -> [B]; norms are at least 1e-8."""
    return jnp.sum(unit(a) * unit(b), -1)


def risk(task: Task) -> Loss:
    """The empirical risk F_i, the mean cross-entropy, as a loss (w, batch, key) -> (value, out).

    With a key the model runs in training mode, without one in evaluation mode.
    """

    def value(w, batch, key=None):
        out = task.apply(w, batch.x, key, batch.mask)
        return cross_entropy(out.logits, batch), out

    return value
