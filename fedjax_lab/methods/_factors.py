"""What the methods for low-rank adapters (LoRA) share.

A kernel W [..., d, f] has the factors A [..., d, r] and B [..., r, f], and the model computes with
W + s A B. Leading axes are those of a loop over layers. The numbers of formulas (L1, L2, ...) are
this package's own.

Clients may have ranks r_i below r. The arrays of a client then have rank r as well, and are 0
beyond the first r_i columns of A and rows of B. The scale s is the same for all ranks: alpha_i is
proportional to r_i, as in FLoRA.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.models.adapters import A, B
from fedjax_lab.simulation import needs
from fedjax_lab.types import (
    Adapters,
    Array,
    Exchange,
    Method,
    State,
    Task,
    Weights,
    Work,
)

FULL = jax.lax.Precision.HIGHEST  # no TF32, no bfloat16


class Pair(NamedTuple):
    """The factors of a kernel."""

    A: Array  # [..., d, r]
    B: Array  # [..., r, f]


def adapters_of(task: Task) -> Adapters:
    """The adapters of the task. Raises BadInput if it has none."""
    needs.check(task, "adapters")
    assert task.adapters is not None  # checked
    return task.adapters


def is_a(name: str) -> bool:
    """Whether the leaf of this name is a factor A."""
    return name.endswith(A)


def pairs(w: Weights) -> dict[str, Pair]:
    """{path of a kernel: its factors}."""
    named = tree.by_name(w.params)
    paths = [name.removesuffix(A) for name in named if is_a(name)]
    return {path: Pair(named[path + A], named[path + B]) for path in paths}


def with_pairs(w: Weights, new: dict[str, Pair]) -> Weights:
    """The weights with these factors."""
    named = {path + A: pair.A for path, pair in new.items()}
    named |= {path + B: pair.B for path, pair in new.items()}
    return w._replace(params=tree.map_named(named.get, w.params))


def each(change: Callable[[Pair], Pair], w: Weights) -> Weights:
    """The weights with a change of every pair of factors."""
    return with_pairs(w, {path: change(pair) for path, pair in pairs(w).items()})


def product(pair: Pair) -> Array:
    """A B [..., d, f]."""
    return jnp.matmul(*pair, precision=FULL)


def stacked(weight: Array, pair: Pair) -> Pair:
    """The factors of clients [M, ...] side by side, whose product is sum_i p_i A_i B_i.

    weight: p [M]; it is on one factor only.
    """
    p = weight.reshape(-1, *(1,) * (pair.B.ndim - 1)).astype(pair.B.dtype)
    a = jnp.moveaxis(pair.A, 0, -2)  # [..., d, M, r]
    b = jnp.moveaxis(p * pair.B, 0, -3)  # [..., M, r, f]
    return Pair(a.reshape(*a.shape[:-2], -1), b.reshape(*b.shape[:-3], -1, b.shape[-1]))


def bound(a: Array) -> float:
    """The largest entry of a random A [..., d, r]: 1 / sqrt(d), as in PEFT."""
    return a.shape[-2] ** -0.5


def fresh(w: Weights, key: Array) -> Weights:
    """The weights with a new random A and a B of 0 for every kernel."""
    keys = iter(jax.random.split(key, len(pairs(w))))

    def one(pair):
        a, high = pair.A, bound(pair.A)
        return Pair(
            jax.random.uniform(next(keys), a.shape, a.dtype, -high, high), jnp.zeros_like(pair.B)
        )

    return each(one, w)


def updates(message: tuple[Weights, Array], id: Array, upload: Weights) -> Weights:
    """Marks an upload as an update of the weights with which the message begins."""
    return wire.model_references(message[0], upload)


# Ranks of clients.


def truncated(w: Weights, rank: Array) -> Weights:
    """The weights with the first `rank` columns of each A and rows of each B; the others are 0."""

    def one(pair):
        kept = jnp.arange(pair.A.shape[-1]) < rank
        return Pair(jnp.where(kept, pair.A, 0), jnp.where(kept[:, None], pair.B, 0))

    return each(one, w)


def client_ranks(task: Task, ranks: tuple) -> Callable[[Array], Array]:
    """A function from ids of clients to their ranks, by which `ranks` is repeated; (): r.

    Raises BadInput unless the ranks are whole numbers from 1 to r.
    """
    shapes = pairs(jax.eval_shape(task.init, jax.random.key(0)))
    largest = max(pair.A.shape[-1] for pair in shapes.values())
    if not all(isinstance(rank, int) and 1 <= rank <= largest for rank in ranks):
        raise BadInput(
            f"config.method.ranks must be whole numbers from 1 to config.adapter.rank={largest},"
            f" got {ranks}"
        )
    table = np.array(ranks or (largest,), np.int32)
    return lambda ids: jnp.asarray(table)[ids % len(table)]


def counted(method: Method, task: Task, ranks: tuple) -> Method:
    """The method, whose bytes are counted without the entries beyond the clients' ranks."""
    shapes = pairs(jax.eval_shape(task.init, jax.random.key(0)))

    rank_of = client_ranks(task, ranks)

    def absent(federation):
        rank = np.asarray(rank_of(np.arange(len(federation.train))), np.float64)  # [C]
        each = [(tree.num_bytes(pair), pair.A.shape[-1]) for pair in shapes.values()]
        return sum(size // r * np.maximum(0, r - rank) for size, r in each)

    return method.having(absent=absent)


def train(loss: losses.Loss, w: Weights, work: Work, keep: Callable[[Weights], Weights]) -> Weights:
    """Trains a part of the numbers of w.

    keep: weights -> weights in which the numbers that are not trained are constants.
    """
    return keep(work.train(w, lambda v, batch, key: loss(keep(v), batch, key)))


# Methods that change the base.


class Server(NamedTuple):
    """The server's state: the model computes with W + delta."""

    w: Weights
    delta: dict[str, Array]  # {path of a kernel: what is added to it [..., d, f]}


def on_base(task: Task, delta: dict[str, Array]) -> Task:
    """The task whose frozen kernels have the delta added. BadInput if they are quantized."""
    return adapters_of(task).changed(delta)


def changing_the_base(task: Task, exchange: Exchange) -> Method:
    """A method whose server has a `Server`, and whose clients upload weights."""

    def init(key, num_clients):
        w = task.init(key)
        delta = {path: tree.zeros(jax.eval_shape(product, p)) for path, p in pairs(w).items()}
        return State(Server(w, delta), ())

    def predict(server, client, x):
        return on_base(task, server.delta).apply(server.w, x).logits

    def updates(server, id, upload):
        return wire.model_references(server.w, upload)

    def model(server, private):
        raise BadInput(
            "its model is more than its adapters, because it has changed the frozen weights too;"
            " config.run.start_with=state continues it"
        )

    return Method(
        init=init,
        round=(exchange._replace(updates=updates),),
        predict=predict,
        newcomer=lambda state: (state.server, ()),
        sample=sampling.by_size,
    ).having(model=model)
