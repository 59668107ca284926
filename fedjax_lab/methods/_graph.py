"""Graphs of clients that exchange models with their neighbors, and the weights of the exchange."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, streams, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods._sizes import check_pairs
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Within
from fedjax_lab.types import Array, Exchange, Method, State, Task, Weights

Graph = Literal["ring", "torus", "random", "complete"]
Degree = Annotated[int, Within(2, 1000)]  # each ring of a random graph is traced

Combine = Callable[[Array, Weights, Weights], Weights]
# (W, models before and after training, leaves [C, ...]) -> models of the next round


def over_graph(task: Task, graph: str, degree: int, combine: Combine, name: str) -> Method:
    """A method whose clients train their own models and mix them with those of their neighbors.

    The server stands for the network: it holds all models and W. A client that does not take part,
    or whose upload is lost, keeps its model for the round. A new client gets the mean model.
    """
    if degree % 2:
        raise BadInput(f"config.method.degree must be even, got {degree}")
    risk = losses.risk(task)

    def init(key, num_clients):
        check_pairs(name, num_clients)
        W = mixing(graph, degree, streams.extra(key), num_clients)
        return State((tree.repeat(task.init(key), num_clients), W), ())

    def local(x, client, work):
        return work.train(x, risk), client.private

    def aggregate(server, y, cohort):
        models, W = server
        return combine(W, models, tree.put(models, cohort.id, y)), W

    exchange = Exchange(lambda server, id: tree.take(server[0], id), local, aggregate, alike=False)
    return fedavg(task)._replace(
        init=init,
        round=(exchange,),
        newcomer=lambda state: (jax.tree.map(lambda a: jnp.mean(a, 0), state.server[0]), ()),
        sample=sampling.all_clients,
    )


def mixing(graph: str, degree: int, key: Array, num_clients: int) -> Array:
    """The Metropolis weights W [C, C], symmetric and with rows that sum to 1.

    Neighbors of degrees d and e have the weight 1 / (1 + max(d, e)), and a client keeps the rest.
    On a regular graph of degree d all of these are 1 / (d + 1), on the complete graph 1/C.

    graph: ring; torus: a grid, as square as C allows, whose ends meet (a ring if C is prime);
        random: the union of degree / 2 random rings, which is nearly regular and connected;
        complete.
    """
    linked = links(graph, degree, key, num_clients)
    degrees = jnp.sum(linked, 1)
    shares = jnp.where(linked, 1 / (1 + jnp.maximum(degrees[:, None], degrees)), 0)
    return shares + jnp.diag(1 - jnp.sum(shares, 1))


def links(graph: str, degree: int, key: Array, num_clients: int) -> Array:
    """Whether two clients are neighbors, [C, C]; none is its own neighbor."""
    ids = jnp.arange(num_clients)
    rows = next(r for r in range(math.isqrt(num_clients), 0, -1) if num_clients % r == 0)
    grid = ids.reshape(rows, -1)
    orders = [jax.random.permutation(k, ids) for k in jax.random.split(key, degree // 2)]
    pairs = {
        "ring": [(ids, jnp.roll(ids, 1))],
        "torus": [(grid, jnp.roll(grid, 1, axis)) for axis in (0, 1)],
        "random": [(order, jnp.roll(order, 1)) for order in orders],
        "complete": [(ids[:, None], ids)],
    }[graph]
    linked = jnp.zeros((num_clients, num_clients), bool)
    for one, other in pairs:
        linked = linked.at[one, other].set(True).at[other, one].set(True)
    return linked & ~jnp.eye(num_clients, dtype=bool)
