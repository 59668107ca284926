"""Losses of one padded batch. Each is a mean over the examples that are not padding.

`Task.loss` is the loss of the run's task; methods whose formulas are about classes use
`cross_entropy`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedjax_lab.types import Array, Batch, Objective, Output, Task, Weights, needs_classes

# (weights, batch, key) -> (value, out). Training continues with the running statistics `out.stats`:
# out is the Output of the forward pass, or weights that hold the new statistics.
Loss = Callable[[Weights, Batch, Array | None], tuple[Array, Output | Weights]]


def masked_mean(values: Array, mask: Array) -> Array:
    """Mean of values [B, ...] over the rows where mask [B] is 1; 0 if there is no such row."""
    rows = mask.reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.sum(values * rows, 0) / jnp.maximum(jnp.sum(mask), 1.0)


def cross_entropy(logits: Array, batch: Batch) -> Array:
    """Mean cross-entropy logsumexp(o) - o_y over the examples of a batch; logits o [B, K].

    Raises BadInput if the labels are not one class of each example.
    """
    of_classes = logits.ndim == 2 and logits.shape[1] > 1  # a binary task has one output
    if batch.y.ndim != 1 or not of_classes or not jnp.issubdtype(batch.y.dtype, jnp.integer):
        label, outputs = f"{batch.y.dtype}{list(batch.y.shape[1:])}", list(logits.shape[1:])
        raise needs_classes(f"a label is {label} here and the outputs of an example are {outputs}")
    return masked_mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch.y), batch.mask)


def classification(num_classes: int) -> Objective:
    """The objective of a classifier: the cross-entropy of one class of each example."""
    return Objective(
        name="classification",
        outputs=(num_classes,),
        label=jax.ShapeDtypeStruct((), jnp.int32),
        losses=optax.softmax_cross_entropy_with_integer_labels,
        correct=lambda logits, y: jnp.argmax(logits, -1) == y,
        has_classes=True,
    )


def as_objective(given: Objective | int) -> Objective:
    """The objective, or that of a classification for a number of classes."""
    return classification(given) if isinstance(given, int) else given


def check_classes(task: Task) -> None:
    """Raises BadInput unless each example of the task has one class."""
    _ = task.num_classes


def pooled(features: Array) -> Array:
    """Features [B, ..., D] -> their means over the positions of each example [B, D]."""
    if features.ndim == 2:
        return features
    return jnp.mean(features.reshape(len(features), -1, features.shape[-1]), 1)


def unit(rows: Array) -> Array:
    """Returns the rows [., F] divided by their norms, where a norm counts as at least 1e-8."""
    return rows / jnp.sqrt(jnp.maximum(jnp.sum(rows * rows, -1, keepdims=True), 1e-16))


def cosine(a: Array, b: Array) -> Array:
    """Cosine similarity of the rows of a and b, [B, D] each -> [B]; norms are at least 1e-8."""
    return jnp.sum(unit(a) * unit(b), -1)


def risk(task: Task) -> Loss:
    """The empirical risk F_i, the mean of `Task.loss`, as a loss (w, batch, key) -> (value, out).

    With a key the model runs in training mode, without one in evaluation mode.
    """

    def value(w, batch, key=None):
        out, losses_at = task.apply(w, batch.x, key, batch.mask), task.objective.losses_at
        if losses_at is None:
            return task.loss(out.logits, batch), out

        def head(z):
            return task.apply_at("head", w, batch.x, z, key, batch.mask).logits

        return task.mean(losses_at(head, out.features, batch.y), batch), out

    return value
