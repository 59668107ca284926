"""A class of each position of an example, such as a token or a pixel."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax

from fedjax_lab.data.dataset import IGNORED
from fedjax_lab.errors import BadInput
from fedjax_lab.tasks import Labels
from fedjax_lab.types import Array, Objective


def objective(name: str, labels: Labels, **fields) -> Objective:
    """The objective with the cross-entropy of every position that counts."""
    y, K = labels.y, len(labels.classes)
    low, high = int(labels.every.min(initial=0)), int(labels.every.max(initial=0))
    if not IGNORED <= low <= high < K:
        wrong = low if low < IGNORED else high
        valid = f"0 .. {K - 1}" if K else "0 .. K - 1"
        raise BadInput(
            f"config.task.name={name}: a position has the label {wrong}; labels are {valid}, or"
            f" {IGNORED} where a position does not count; if {wrong} means this, set"
            f" --config.data.no_label={wrong}"
        )
    return Objective(
        name=name,
        outputs=(*y.shape[1:], K),
        label=jax.ShapeDtypeStruct(y.shape[1:], jnp.int32),
        losses=losses,
        correct=correct,
        num_labels=count,
        predict=lambda logits: jnp.argmax(logits, -1),
        **fields,
    )


def losses(logits: Array, y: Array) -> Array:
    """The sum of the cross-entropies of the positions of each example that count [B]."""
    each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(y, 0))
    return _summed(jnp.where(y == IGNORED, 0, each))


def losses_in_blocks(size: int, head: Callable[[Array], Array], features: Array, y: Array) -> Array:
    """The `losses` of head(features [B, T, D]), without logits of more than `size` positions.

    The backward pass computes the logits of each block of positions again.
    """
    count = -(-y.shape[1] // size)
    rest = (0, 0), (0, count * size - y.shape[1])

    def blocks(a):  # [B, T, ...] -> [count, B, size, ...]
        return jnp.moveaxis(a.reshape(len(a), count, size, *a.shape[2:]), 1, 0)

    @partial(jax.checkpoint, prevent_cse=False)
    def one(total, block):
        z, labels = block
        return total + losses(head(z), labels), None

    z = blocks(jnp.pad(features, (*rest, (0, 0))))
    labels = blocks(jnp.pad(y, rest, constant_values=IGNORED))
    return jax.lax.scan(one, jnp.zeros(len(y)), (z, labels))[0]


def correct(logits: Array, y: Array) -> Array:
    """The number of positions of each example that are predicted [B]."""
    return _summed(jnp.argmax(logits, -1) == y)


def count(y: Array) -> Array:
    """The number of positions of each example that count [B]."""
    return _summed(y != IGNORED)


def _summed(values: Array) -> Array:
    """Values [B, ...] -> their sum over the positions of each example [B]."""
    return jnp.sum(values.reshape(len(values), -1).astype(jnp.float32), 1)
