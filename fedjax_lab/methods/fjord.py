"""FjORD (Horvath et al., NeurIPS 2021, arXiv:2102.13451): ordered dropout of channels.

  send    the weights of W_t in the client's part, of width p_i
  local   w_i <- SGD on  CE(f_{p_i}(x), y) + CE(f_p(x), f_{p_i}(x)),  p in P drawn in each step
  server  as HeteroFL, weighted by size

P are the widths. p_i is the largest of them up to the client's capacity (config.partition.capacity)
and at least the smallest; p is one of those up to p_i. f_p computes with the first ceil(p n)
channels of each hidden layer; the second target, the softmax of f_{p_i}(x), is a constant.
BatchNorm layers have parameters and statistics for each p, which are averaged over the clients
with p_i of at least p. A client is scored with p_i, and a new client with the largest width.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.methods._submodels import by_capacity, mean_of_holders, rate
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.models import parts
from fedjax_lab.models.widths import Widths, task_widths
from fedjax_lab.ranges import checked
from fedjax_lab.types import Array, Batch, Exchange, Method, Output, State, Task, Weights


@checked("method")
def fjord(task: Task, *, widths: tuple = (0.2, 0.4, 0.6, 0.8, 1.0), distill: bool = True) -> Method:
    """widths: P, ascending. distill: whether narrower models learn from that of width p_i."""
    if not widths or not all(a < b <= 1 for a, b in zip((0, *widths), widths, strict=False)):
        raise BadInput(f"config.method.widths must ascend from above 0 to at most 1, got {widths}")
    losses.check_classes(task)
    nested = Nested(task_widths(task), tree.within(task.batch_norms), widths)
    parts.check_groups(nested.known, widths, "config.method.widths")

    apply, init = partial(apply_width, nested, task), partial(first, nested, task)

    def local(w_t, client, work):
        largest = index(nested, rate(client))
        loss = partial(loss_of_widths, task, apply, largest, distill)
        w = work.train(held(nested, w_t, largest), loss)
        return (held(nested, w, largest), largest), client.private

    def aggregate(w_t, uploads, cohort):
        w, largest = uploads
        return mean_of_holders(partial(total, nested, largest, w_t), cohort.weight, w, w_t)

    def updates(w_t, id, upload):
        w, largest = upload
        return wire.model_references(held(nested, w_t, largest), w), wire.KEPT

    def predict(w, client, x):
        return apply(w, index(nested, rate(client)), x).logits

    return (
        fedavg(task)
        ._replace(
            init=lambda key, num_clients: State(init(key), ()),
            round=(Exchange(send, local, aggregate, updates, alike=False),),
            predict=predict,
        )
        .having(
            absent=by_capacity(partial(absent, nested, jax.eval_shape(init, jax.random.key(0))))
        )
    )


def loss_of_widths(
    task: Task,
    apply: Callable[..., Output],
    largest: Array,
    distill: bool,
    w: Weights,
    batch: Batch,
    key: Array,
) -> tuple[Array, Output]:
    """The loss of a client with the width P[largest], as `losses.Loss`."""
    q = jax.random.randint(jax.random.fold_in(key, 1), (), 0, largest + 1)
    narrow = apply(w, q, batch.x, key, batch.mask)
    if not distill:
        return task.loss(narrow.logits, batch), narrow
    wide = apply(w._replace(stats=narrow.stats), largest, batch.x, key, batch.mask)
    target = jax.lax.stop_gradient(jax.nn.softmax(wide.logits))
    of_examples = -jnp.sum(target * jax.nn.log_softmax(narrow.logits), -1)
    value = task.loss(wide.logits, batch) + losses.masked_mean(of_examples, batch.mask)
    return value, wide


class Nested(NamedTuple):
    """A model in several widths; its normalizations have a leading axis [P]."""

    known: Widths
    is_norm: Callable[[str], bool]
    widths: tuple[float, ...]  # [P]


def index(nested: Nested, capacity: Array) -> Array:
    """The place in P of the largest width up to a rate, or else of the smallest."""
    fits = jnp.array(nested.widths) <= capacity[..., None] + 1e-6
    return jnp.maximum(jnp.sum(fits, -1) - 1, 0)


def part(nested: Nested, q: Array | int) -> Array:
    """The vector of units of width P[q]."""
    width = jnp.array(nested.widths)[q]
    return parts.part_units(nested.known, lambda i, size: parts.window(width, 0, size))


def first(nested: Nested, task: Task, key: Array) -> Weights:
    """The first weights."""
    norms, body = tree.split(nested.is_norm, task.init(key))
    return tree.join(tree.repeat(norms, len(nested.widths)), body)


def apply_width(
    nested: Nested,
    task: Task,
    w: Weights,
    q: Array,
    x: Array,
    key: Array | None = None,
    mask: Array | None = None,
) -> Output:
    """A pass of the model of width P[q], with its own normalizations."""
    norms, body = tree.split(nested.is_norm, w)
    narrow = tree.join(tree.take(norms, q), body)
    here = part(nested, q)
    run = parts.applied(nested.known, here, task.apply)
    out = run(parts.masked(nested.known, here, narrow), x, key, mask)
    return out._replace(stats=jax.tree.map(lambda a, b: a.at[q].set(b), w.stats, out.stats))


def held(nested: Nested, w: Weights, largest: Array) -> Weights:
    """The weights with 0 outside of the part of width P[largest]."""
    norms, body = tree.split(nested.is_norm, w)
    has = (jnp.arange(len(nested.widths)) <= largest)[:, None]
    norms = jax.tree.map(lambda a: a * has, norms)
    return tree.join(norms, parts.masked(nested.known, part(nested, largest), body))


def total(nested: Nested, largest: Array, w: Weights, share: Array) -> Weights:
    """The sum of the shares of the clients that have each number; largest, share: [M]."""
    norms, body = tree.split(nested.is_norm, w)
    count = len(nested.widths)
    has = jnp.arange(count)[:, None] <= largest  # [P, M]
    of_norms = jnp.sum(has * share, 1).reshape(count, 1)
    of_body = parts.total(nested.known, jax.vmap(partial(part, nested))(largest), body, share)
    return tree.join(jax.tree.map(lambda _: of_norms, norms), of_body)


def absent(nested: Nested, shapes: Weights, capacity: Array) -> Array:
    """The bytes of the model that a client does not need."""
    norms, body = tree.split(nested.is_norm, shapes)
    largest = index(nested, jnp.where(capacity > 0, capacity, 1))
    size = parts.num_bytes(nested.known, part(nested, largest), body)
    of_one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), norms)
    for q in range(len(nested.widths)):
        size += jnp.where(q <= largest, parts.num_bytes(nested.known, part(nested, q), of_one), 0)
    return tree.num_bytes(shapes) - size
