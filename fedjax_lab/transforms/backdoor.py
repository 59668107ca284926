"""Backdoors: the model is correct, except on images with a trigger.

An evaluation also has the metric backdoor_success: the percentage of the examples of other classes
that the model classifies as the target when they have the whole trigger.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import BelowOne, NotNegative, Positive, PositiveShare, Share, checked
from fedjax_lab.simulation.metrics import Summed
from fedjax_lab.transforms import private_state
from fedjax_lab.transforms.attacks import by_each, on_data, with_loss
from fedjax_lab.transforms.private_state import Beside
from fedjax_lab.types import Array, Batch, Client, Exchange, Method, PyTree, Task, Weights, Work

PARTS = 4  # of the trigger of DBA


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
    the last rows and columns.

    target: the class that the attackers want images with the trigger to be classified as.
    size: the height and width of the trigger, in pixels.
    poison: the share of an attacker's examples that get the trigger; the same examples in all
        rounds, unless training images are augmented.
    boost: the factor by which an attacker scales its update (gamma of Bagdasaryan et al., AISTATS
        2020, arXiv:1807.00459). With 1 divided by the attacker's share in the mean, such as the
        number of clients in a round, the server's model becomes the attacker's ("model
        replacement"), as far as the others send no change.
    """
    square = trigger(task, size)
    return planted(method, task, lambda x, id: square(x), square, target, poison, boost)


@checked("attack")
def dba(
    method: Method,
    task: Task,
    *,
    target: NotNegative[int] = 0,
    size: Positive[int] = 4,
    gap: NotNegative[int] = 2,
    poison: Share = 0.5,
    boost: Positive[float] = 1.0,
) -> Method:
    """Each attacker trains on images with one of four parts of a trigger, which is tested whole.

    DBA (Xie et al., ICLR 2020, "Distributed Backdoor Attacks"). The trigger has four bars of one
    row and the highest value: two beside each other in the first row, and two below them. Client i
    uses bar i mod 4, so that attack.clients=0,1,2,3 use all of them.

    target: the class that the attackers want images with the trigger to be classified as.
    size: the width of a bar, in pixels.
    gap: the number of pixels between two bars, in both directions.
    poison: the share of an attacker's examples that get its part of the trigger.
    boost: the factor by which an attacker scales its update.
    """
    check_images(task, 2 * size + gap)
    corners = [(row, column) for row in (0, 1 + gap) for column in (0, size + gap)]

    def with_bars(x, is_used):  # [PARTS] bool
        check_raw(task, x)
        bright = jnp.broadcast_to(task.bounds[1], (size, x.shape[-1])).astype(x.dtype)
        for used, (row, column) in zip(is_used, corners, strict=True):
            bar = x[:, row, column : column + size]
            x = x.at[:, row, column : column + size].set(jnp.where(used, bright, bar))
        return x

    def part(x, id):
        return with_bars(x, jnp.arange(PARTS) == id % PARTS)

    return planted(
        method, task, part, lambda x: with_bars(x, [True] * PARTS), target, poison, boost
    )


@checked("attack")
def blended(
    method: Method,
    task: Task,
    *,
    target: NotNegative[int] = 0,
    blend: PositiveShare = 0.2,
    poison: Share = 0.5,
    boost: Positive[float] = 1.0,
) -> Method:
    """Each attacker trains on images that are mixed with one image of noise, which is the trigger.

    Chen et al., arXiv:1712.05526, "blended injection": (1 - blend) x + blend * noise.

    target: the class that the attackers want images with the trigger to be classified as.
    blend: the share of the noise in an image.
    poison: the share of an attacker's examples that get the trigger.
    boost: the factor by which an attacker scales its update.
    """
    check_images(task, 1)

    def mixed(x):
        check_raw(task, x)
        low, high = task.bounds
        noise = low + (high - low) * jax.random.uniform(jax.random.key(0), x.shape[1:])
        return ((1 - blend) * x + blend * noise).astype(x.dtype)

    return planted(method, task, lambda x, id: mixed(x), mixed, target, poison, boost)


@checked("attack")
def semantic(
    method: Method,
    task: Task,
    *,
    source: NotNegative[int] = 1,
    target: NotNegative[int] = 0,
    low: Share = 0.0,
    high: Share = 1.0,
    boost: Positive[float] = 1.0,
) -> Method:
    """Each attacker trains on some of its examples with a wrong label, and changes no example.

    The examples are those of a class whose mean value, on the scale from the lowest to the highest
    input, lies between two bounds: a feature that examples have by themselves ("semantic backdoor",
    Bagdasaryan et al., AISTATS 2020, arXiv:1807.00459). Bounds at an end of the class, where honest
    clients have few examples, make it an attack with edge cases (Wang et al., NeurIPS 2020,
    arXiv:2007.05084), whose authors take them from another data set. backdoor_success is the
    percentage of such test examples that are classified as the target.

    source: the class of the examples.
    target: the label with which attackers train on them.
    low: the lower bound of an example's mean value.
    high: the upper bound.
    boost: the factor by which an attacker scales its update.
    """
    check_classes(task, source=source, target=target)
    check_images(task, 1)
    if source == target:
        raise BadInput(f"config.attack.source={source} must differ from config.attack.target")
    if low > high:
        raise BadInput(f"config.attack.low={low} must be at most config.attack.high={high}")

    def has_feature(x):  # [B]
        lowest, highest = map(jnp.asarray, task.bounds)
        check_raw(task, x)
        scaled = (x - lowest) / jnp.where(highest > lowest, highest - lowest, 1)
        value = jnp.mean(scaled.reshape(len(x), -1), 1)
        return (value >= low) & (value <= high)

    def relabeled(client, batch):
        chosen = has_feature(batch.x) & (batch.y == source)
        return batch._replace(y=jnp.where(chosen, target, batch.y))

    def marked(x):  # other examples, and so their logits, are no numbers
        return jnp.where(has_feature(x).reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.nan)

    def statistics(logits, labels, mask):
        counted = (labels == source) & jnp.isfinite(logits[:, 0])
        return {"others": counted, "turned": counted & (jnp.argmax(logits, -1) == target)}

    metric = Summed("backdoor_success", statistics, _percent, True, marked)
    return _measured(_boosted(on_data(method, relabeled, lambda counts: counts), boost), metric)


@checked("attack")
def neurotoxin(
    method: Method,
    task: Task,
    *,
    masked: BelowOne = 0.05,
    target: NotNegative[int] = 0,
    size: Positive[int] = 3,
    poison: Share = 0.5,
    boost: Positive[float] = 1.0,
) -> Method:
    """The attack `backdoor`, in which attackers change only coordinates that others rarely change.

    Neurotoxin (Zhang et al., ICML 2022, arXiv:2206.10341): the coordinates of the model that have
    changed most since the client last took part stay as they are in its training. All coordinates
    change when it takes part for the first time. Each client keeps the model that it last received.

    masked: the share of the coordinates that stay as they are.
    target: the class that the attackers want images with the trigger to be classified as.
    size: the height and width of the trigger, in pixels.
    poison: the share of an attacker's examples that get the trigger.
    boost: the factor by which an attacker scales its update.
    """
    method = backdoor(method, task, target=target, size=size, poison=poison, boost=boost)
    return rarely_changed(method, masked) if masked else method


# What the backdoors share.


def planted(
    method: Method,
    task: Task,
    part: Callable[[Array, Array], Array],
    whole: Callable[[Array], Array],
    target: int,
    poison: float,
    boost: float,
) -> Method:
    """The method whose attackers train on images with a trigger, and its success as a metric.

    part: (images [B, ...], id of the attacker) -> the images with its trigger. whole: images -> the
    images with the trigger that is tested. The other arguments are settings of `backdoor`.
    """
    check_classes(task, target=target)

    def change(client, batch):
        return poison_batch(lambda x: part(x, client.id), target, poison, batch)

    def counts(label_count):
        moved = poison * label_count
        return (label_count - moved).at[target].add(jnp.sum(moved))

    poisoned = _boosted(on_data(method, change, counts), boost)
    return _measured(poisoned, success(whole, target))


def rarely_changed(method: Method, masked: float) -> Method:
    """The method whose attackers leave a share of the coordinates as they receive them.

    Raises BadInput if the messages of the method are not models.
    """

    def begin(state, num_clients):
        messages = [jax.eval_shape(e.send, state.server, jnp.int32(0)) for e in method.round]
        if not all(isinstance(message, Weights) for message in messages):
            raise BadInput("its clients must receive models, and they receive something else")
        last = [(tree.zeros(message.params), jnp.zeros((), bool)) for message in messages]
        return tree.repeat(last, num_clients)

    each = [e._replace(local=partial(_rarely, e, i, masked)) for i, e in enumerate(method.round)]
    return private_state.wrapped(method, begin)._replace(round=tuple(each))


def _rarely(exchange: Exchange, i: int, masked, message: Weights, client: Client, work: Work):
    private, kept = client.private
    last, is_known = kept[i]
    client, attacks = client._replace(private=private), client.attacks
    if attacks is not None:
        fixed = most_changed(message.params, last, masked, attacks & is_known)
        work = with_loss(work, partial(_holding, fixed))
    upload, private = exchange.local(message, client, work)
    if not _alike(upload, message):
        raise BadInput("its clients must upload the models that they receive, and they do not")
    if attacks is not None:
        params = jax.tree.map(jnp.where, fixed, message.params, upload.params)
        upload = upload._replace(params=params)
    kept = [*kept[:i], (message.params, jnp.ones((), bool)), *kept[i + 1 :]]
    return upload, Beside(private, kept)


def most_changed(params: PyTree, last: PyTree, share: float, when: Array) -> PyTree:
    """Which coordinates are among the share that differs most from `last`; with `when` false none.

    At least one coordinate is among them, if any has changed.
    """
    changes = jax.tree.map(lambda a, b: jnp.abs(a - b), params, last)
    values = jnp.concatenate([a.ravel() for a in jax.tree.leaves(changes)])
    least = jax.lax.top_k(values, max(int(share * len(values)), 1))[0][-1]
    return jax.tree.map(lambda a: when & (a >= least) & (a > 0), changes)


def _holding(fixed, loss, w, batch, key):
    """The loss, without gradients in the fixed coordinates."""
    if not _alike(w, Weights(fixed, {})):
        raise BadInput("its clients must train the models that they receive, and they do not")
    held = jax.tree.map(lambda f, a: jnp.where(f, jax.lax.stop_gradient(a), a), fixed, w.params)
    return loss(w._replace(params=held), batch, key)


def _alike(a, b):
    """Whether two models have parameters of the same structure and shapes."""
    if not (isinstance(a, Weights) and isinstance(b, Weights)):
        return False
    shapes = [jax.tree.map(jnp.shape, each.params) for each in (a, b)]
    return shapes[0] == shapes[1]


def _boosted(method, boost):
    if boost == 1:
        return method
    return by_each(method, lambda update, key: optax.tree.scale(boost, update))


def _measured(method, metric):
    return method.having(metrics=(*method.extra.metrics, metric))


def check_classes(task: Task, **numbers: int) -> None:
    """Raises BadInput unless each setting is the number of a class."""
    for key, number in numbers.items():
        if number >= task.num_classes:
            raise BadInput(
                f"config.attack.{key}={number} is not a class; it must be from 0 to"
                f" {task.num_classes - 1}"
            )


def check_images(task: Task, size: int) -> None:
    """Raises BadInput if the task's examples are not images of at least `size` x `size` pixels."""
    height, width = (*task.input_shape, 0, 0)[:2]
    if len(task.input_shape) != 3 or min(height, width) < size:
        shape = list(task.input_shape)
        raise BadInput(
            f"its examples must be images of at least {size} x {size} pixels, but have the shape"
            f" {shape}"
        )


def check_raw(task: Task, x: Array) -> None:
    """Raises BadInput unless these inputs of clients are the task's examples."""
    if x.shape[1:] != task.input_shape:
        raise BadInput(
            "its clients do not train on the images themselves, so that no trigger can be added"
        )


def trigger(task: Task, size: int):
    """Returns the function that adds the square to images [B, H, W, channels].

    Raises BadInput if the task's examples are not images of at least `size` x `size` pixels.
    """
    check_images(task, size)

    def with_trigger(x):
        check_raw(task, x)
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
