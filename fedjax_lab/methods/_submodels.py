"""What the methods share whose clients train parts of one model.

A client with the capacity rho trains ceil(rho n) of the n channels of each layer: the full model
with weights of 0 outside of its part, where they stay 0 (`models.parts`). Clients that train one
by one train the narrower model itself, if it is one of few levels. A part follows from rho, the
client's id, and a number or key of the server that every client gets.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from fedjax_lab import losses, sampling, streams, tree, wire
from fedjax_lab.methods._static_norm import with_statistics, without_statistics
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.models import parts, widths
from fedjax_lab.types import (
    Array,
    Client,
    Exchange,
    Federation,
    Method,
    Output,
    PyTree,
    State,
    Task,
    Weights,
    Work,
)

LEVEL = 7  # the stream of the levels that are drawn, beside those of an upload's transforms


class Rule(NamedTuple):
    """Which units of a model a client trains in a round."""

    of_group: Callable[..., Array]
    # (rho, what the server keeps, id, number of a group, its size n) -> which units, [n]
    first: Callable[[Array], PyTree] = lambda key: ()  # what the server keeps before round 0
    after: Callable[[PyTree], PyTree] = lambda state: state  # and after each round


class Upload(NamedTuple):
    """What a client sends."""

    w: Weights  # 0 outside of its part
    rho: Array  # []
    classes: Any  # [K] bool, those that it has; None: all take part


def submodel_fedavg(
    task: Task,
    rule: Rule,
    *,
    weights: Literal["uniform", "size"] = "uniform",
    scaler: bool = False,
    masked_loss: bool = False,
    dynamic: bool = False,
    static_norm: bool = False,
) -> Method:
    """FedAvg of the parts that a rule chooses.

    weights: of the clients in the mean of a number: uniform, or size.
    scaler: in training, the output of each layer but the head is divided by rho.
    masked_loss: logits of classes that the client lacks are 0 in training, and the weights of these
        outputs of the head do not take part in the mean.
    dynamic: a client's rho in a round is a random one of the run's capacities.
    static_norm: statistics of BatchNorm are collected after training; for rules without ids.
    """
    known, levels = parts_of(task)
    choose, cut = partial(units, known, rule), partial(parts.masked, known)
    model_of = partial(narrowed, known, rule, task)
    trained = without_statistics(task) if static_norm else task

    def local(message, client, work):
        (w_t, state), rho = message, drawn(task.levels, work) if dynamic else rate(client)
        classes = client.label_count > 0 if masked_loss else None
        part, held = (choose(rho, state, client.id, of) for of in (classes, None))
        model = trained._replace(apply=parts.applied(known, held, trained.apply))
        loss = loss_of_part(model, rho, scaler, classes)
        w = train(work, cut(part, w_t), loss, rho, levels, partial(parts.form, known, held))
        return Upload(cut(part, w), rho, classes), client.private

    def aggregate(server, uploads, cohort):
        (w_t, state), (w, rho, classes) = server, uploads
        part = jax.vmap(choose, (0, None, 0, 0))(rho, state, cohort.id, classes)
        held = partial(parts.total, known, part, w_t)
        return mean_of_holders(held, cohort.weight, w, w_t), rule.after(state)

    def predict(message, client, x):
        apply, w = model_of(message, rate(client), client.id)
        return apply(w, x).logits

    method = fedavg(task)._replace(
        init=lambda key, num_clients: State((trained.init(key), rule.first(key)), ()),
        round=(Exchange(send, local, aggregate, partial(updates, choose, cut), alike=False),),
        predict=predict,
        sample=sampling.equal if weights == "uniform" else sampling.by_size,
    )
    shapes = jax.eval_shape(trained.init, jax.random.key(0))
    method = method.having(absent=by_capacity(partial(absent, known, shapes)))
    return with_statistics(method, task, model_of, rate) if static_norm else method


def parts_of(task: Task) -> tuple[widths.Widths, tuple[float, ...]]:
    """The model's units, and the levels with a program of their own."""
    known = widths.task_widths(task)
    parts.check_groups(known, task.levels, "config.partition.capacity")
    return known, parts.levels(task)


def updates(choose, cut, message, id, upload) -> Upload:
    """What an upload is an update of: see `wire`."""
    start = cut(choose(upload.rho, message[1], id, upload.classes), message[0])
    return Upload(wire.model_references(start, upload.w), *wire.kept(upload[1:]))


def units(known, rule, rho, state, id, classes=None) -> Array:
    """The vector of units of a client's part; classes: as in `parts.part_units`."""
    return parts.part_units(known, lambda i, n: rule.of_group(rho, state, id, i, n), classes)


def narrowed(known, rule, task, message, rho, id) -> tuple[Callable[..., Output], Weights]:
    """`Task.apply` and the weights of a client's part."""
    w, state = message
    part = units(known, rule, rho, state, id)
    return parts.applied(known, part, task.apply), parts.masked(known, part, w)


def rate(client: Client) -> Array:
    """The share rho of the channels that the client trains."""
    if (capacity := client.traits.get("capacity")) is None:
        return jnp.float32(1)
    return jnp.where(capacity > 0, capacity, 1)


def drawn(levels: tuple[float, ...], work: Work) -> Array:
    """A random one of these capacities, drawn anew in each round; 1 if there are none."""
    return jax.random.choice(streams.extra(work.upload_key(), LEVEL), jnp.array(levels or (1.0,)))


def train(
    work: Work,
    w: Weights,
    loss: losses.Loss,
    rho: Array,
    levels: tuple[float, ...],
    form: Callable[[float, Weights], tuple[Callable, Callable]],
) -> Weights:
    """The trained weights of a part; if rho is one of the levels, of the narrower model itself.

    form: (level, weights) -> `parts.form`.
    """

    def narrower(level):
        shrink, expand = form(level, w)
        return expand(work.train(shrink(w), loss))

    whole = partial(work.train, w, loss)
    return work.switch(place(rho, levels), [whole, *(partial(narrower, r) for r in levels)])


def place(rho: Array, levels: tuple[float, ...]) -> Array:
    """1 + the place of rho among these levels; 0 if it is none of them.

    It is 0 if rho is none of them, and if clients train together in one `vmap`, which would compute
    the models of all levels.
    """
    if not levels:
        return jnp.int32(0)
    is_level = jnp.abs(jnp.array(levels) - rho) < 1e-6
    return _unless_together(jnp.where(is_level.any(), 1 + jnp.argmax(is_level), 0))


@custom_vmap
def _unless_together(number):
    return number.astype(jnp.int32)


@_unless_together.def_vmap
def _(size, batched, number):
    return jnp.int32(0), False


def loss_of_part(task: Task, rho: Array, scaler: bool, classes: Any) -> losses.Loss:
    """The loss of a client's part; see `submodel_fedavg`. classes: [K] bool; None: all."""

    def scaled(params):
        names = tree.names(params)

        def one(name, leaf):
            layer = name.rpartition("/")[0]
            is_scaled = f"{layer}/kernel" in names and layer != task.dense[-1]
            return leaf / rho if is_scaled else leaf

        return tree.map_named(one, params)

    def loss(w, batch, key):
        if scaler:
            w = w._replace(params=scaled(w.params))
        out = task.apply(w, batch.x, key, batch.mask)
        logits = out.logits if classes is None else jnp.where(classes, out.logits, 0)
        return task.loss(logits, batch), out

    return loss


def mean_of_holders(
    held: Callable[[Array], Weights], share: Array, w: Weights, w_t: Weights
) -> Weights:
    """The mean of each number over the clients that have it; the old number if none has it.

    held: shares [M] -> for each number, the sum of the shares of the clients that have it.
    share: [M], which sum to 1. w: [M, ...], 0 where a client does not have a number.
    """
    took_part = (share > 0).astype(share.dtype)

    def mean(old, summed, held, holders):
        held = jnp.where(holders < jnp.sum(took_part), held, 1)  # exactly 1 where all have it
        return jnp.where(holders > 0, summed / jnp.where(holders > 0, held, 1), old)

    return jax.tree.map(mean, w_t, tree.mix(share, w), held(share), held(took_part))


def by_capacity(absent: Callable[[Array], Array]) -> Callable[[Federation], np.ndarray]:
    """`Extra.absent` from the bytes that a client of a capacity does not need."""

    def absent_bytes(federation):
        held, count = federation.traits.get("capacity"), len(federation.train)
        if held is None:
            return np.zeros(count)
        levels, place = np.unique(held[:count], return_inverse=True)
        return np.array([float(absent(level)) for level in levels])[place]

    return absent_bytes


def absent(known: widths.Widths, shapes: Weights, rho: Array) -> Array:
    """The bytes of a model that a client with this capacity does not need; 0: it needs all."""
    rho = jnp.where(rho > 0, rho, 1)
    part = parts.part_units(known, lambda i, size: parts.window(rho, 0, size))
    return tree.num_bytes(shapes) - parts.num_bytes(known, part, shapes)
