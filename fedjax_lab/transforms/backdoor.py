"""The backdoor attack: the model is correct, except on images with a small square in one corner."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import NotNegative, Positive, Share, checked
from fedjax_lab.simulation.metrics import Summed
from fedjax_lab.transforms.attacks import by_each, on_data
from fedjax_lab.types import Array, Batch, Method, Task


@checked("attack")
def backdoor(
    method: Method,
    task: Task,
    *,
    target: NotNegative[int] = 0,
    size: Positive[int] = 3,
    poison: Share = 0.5,
    boost: Positive[float] = 1.0,
) -> Method:
    """Each attacker trains on images with a trigger; all of them have the label of the target.

    The trigger is that of BadNets (Gu et al., arXiv:1708.06733): a square of the highest value in
    the last rows and columns. An evaluation also has the metric backdoor_success: the percentage of
    the examples of other classes that the model classifies as the target when they have the
    trigger.

    target: the class that the attackers want images with the trigger to be classified as.
    size: the height and width of the trigger, in pixels.
    poison: the share of an attacker's examples that get the trigger; the same examples in all
        rounds, unless training images are augmented.
    boost: the factor by which an attacker scales its update (gamma of Bagdasaryan et al., AISTATS
        2020, arXiv:1807.00459, "model replacement").
    """
    if target >= task.num_classes:
        raise BadInput(
            f"config.attack.target={target} is not a class; it must be from 0 to"
            f" {task.num_classes - 1}"
        )
    with_trigger = trigger(task, size)

    def counts(label_count):
        moved = poison * label_count
        return (label_count - moved).at[target].add(jnp.sum(moved))

    poisoned = on_data(method, partial(poison_batch, with_trigger, target, poison), counts)
    if boost != 1:
        poisoned = by_each(poisoned, lambda update, key: optax.tree.scale(boost, update))
    return poisoned.having(metrics=(*method.extra.metrics, success(with_trigger, target)))


def trigger(task: Task, size: int):
    """Returns the function that adds the square to images [B, H, W, channels].

    Raises BadInput if the task's examples are not images of at least `size` x `size` pixels.
    """
    height, width = (*task.input_shape, 0, 0)[:2]
    if len(task.input_shape) != 3 or min(height, width) < size:
        shape = list(task.input_shape)
        raise BadInput(
            f"its examples must be images of at least {size} x {size} pixels, but have the shape"
            f" {shape}"
        )

    def with_trigger(x):
        if x.shape[1:] != task.input_shape:
            raise BadInput(
                "its clients do not train on the images themselves, so that no trigger can be added"
            )
        square = jnp.broadcast_to(task.bounds[1], (size, size, x.shape[-1])).astype(x.dtype)
        return x.at[:, -size:, -size:].set(square)

    return with_trigger


def poison_batch(with_trigger, target: int, share: float, batch: Batch) -> Batch:
    """The batch with the trigger and the label `target` in a share of its examples."""
    chosen = at_random(batch.x, share)
    pixels = chosen.reshape(-1, *(1,) * (batch.x.ndim - 1))
    return batch._replace(
        x=jnp.where(pixels, with_trigger(batch.x), batch.x),
        y=jnp.where(chosen, target, batch.y),
    )


def at_random(x: Array, share: float) -> Array:
    """Returns which examples are chosen, [B] bool, a share of all.

    The choice is a hash of the example itself, so that it is the same in every batch.
    """
    words = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32).reshape(len(x), -1)
    number = jnp.sum(words, 1, dtype=jnp.uint32)  # the sum does not depend on the order
    for multiplier, shift in ((0x85EBCA6B, 16), (0xC2B2AE35, 13), (1, 16)):  # of MurmurHash3
        number = (number ^ (number >> shift)) * jnp.uint32(multiplier)
    return (number >> 8) < round(share * 2**24)


def success(with_trigger, target: int) -> Summed:
    """The metric backdoor_success: how many examples of other classes the trigger misleads."""

    def statistics(logits, labels, mask):
        others = labels != target
        return {"others": others, "turned": others & (jnp.argmax(logits, -1) == target)}

    return Summed("backdoor_success", statistics, _percent, True, with_trigger)


def _percent(sums, total):
    others = np.asarray(sums["others"], float)
    return 100 * sums["turned"] / np.where(others > 0, others, np.nan)
