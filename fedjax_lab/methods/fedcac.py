"""FedCAC (Wu et al., ICCV 2023, arXiv:2309.11103): collaboration on critical parameters.

  send    M_i * mean_{j in C_i} w_j + (1 - M_i) * w_t
  local   w_i <- SGD on F_i from that, w;  M_i = 1 at the share tau of each array of parameters
          with the largest |(w_i - w) w_i|: the critical ones
  server  w_{t+1} = sum_i n_i/n w_i
          O_ij = 1 - |M_i - M_j|_1 / (2 |M_i|_1)
          C_i = {i} and the j with O_ij >= mean O + t/beta (max O - mean O)

After more than beta rounds a client receives its own last values of the critical parameters, also
if all overlaps are equal. Mean and maximum are over pairs of different clients. In the paper all
clients take part in every round. Here the last model of a client is used in rounds without it; a
client that has not taken part yet has no model and receives w_t. Running statistics are those of
w_t. The server keeps C models, C masks and, in memory O(C^2), their differences. A client receives
one model and sends one, together with a mask, which has one byte for each parameter: a quarter of a
model.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree, wire
from fedjax_lab.methods._pairs import distances
from fedjax_lab.methods._sizes import check_pairs
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Positive, Share, checked, choice, uniform
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree, State, Task, Weights

RANGES = {"tau": uniform(0.1, 0.9), "beta": choice(20, 50, 100, 200)}


class Server(NamedTuple):
    """The server's state."""

    w: Weights  # w_t
    models: PyTree  # parameters of the w_i, leaves [C, ...]
    masks: PyTree  # M_i, bool, leaves [C, ...]
    differ: Array  # [C, C] |M_i - M_j|_1
    trained: Array  # [C] whether the client has a w_i
    t: Array  # the number of rounds so far


@checked("method")
def fedcac(task: Task, *, tau: Share = 0.5, beta: Positive[int] = 100) -> Method:
    """tau: the share of parameters that are critical; 0 is FedAvg.

    beta: after more rounds than this, no client shares its critical parameters.
    """
    risk = losses.risk(task)

    def init(key, num_clients):
        check_pairs("fedcac", num_clients)
        w = task.init(key)
        models = tree.repeat(w.params, num_clients)
        masks = jax.tree.map(lambda a: jnp.zeros(a.shape, bool), models)
        differ = jnp.zeros((num_clients, num_clients))
        trained = jnp.zeros(num_clients, bool)
        return State(Server(w, models, masks, differ, trained, jnp.int32(0)), ())

    def local(sent, client, work):
        w = work.train(sent, risk)
        return (w, jax.tree.map(partial(critical, tau), sent.params, w.params)), client.private

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(partial(send, beta), local, aggregate, updates=updates, alike=False),),
        newcomer=lambda state: (state.server.w, ()),
    )


def critical(tau: float, before: Array, after: Array) -> Array:
    """Returns which entries of an array of parameters are critical in a training."""
    sensitivity = jnp.abs((after - before) * after)
    count = jnp.floor(tau * before.size).astype(int)
    least = jnp.sort(sensitivity.ravel(), descending=True)[jnp.maximum(count - 1, 0)]
    return (sensitivity >= least) & (sensitivity > 0) & (count > 0)


def send(beta: int, server: Server, id: Array) -> Weights:
    """Sends the global model with the critical parameters of a client averaged over C_i."""
    chosen = collaborators(beta, server)[id].at[id].set(True)  # C_i, [C]
    shared = tree.mix(chosen / jnp.sum(chosen), server.models)
    mask = tree.take(server.masks, id)
    return server.w._replace(params=jax.tree.map(jnp.where, mask, shared, server.w.params))


def collaborators(beta: int, server: Server) -> Array:
    """Returns which other clients are in C_i in the next round, [C, C]: C_i is row i."""
    sizes = sum(jnp.sum(m, tuple(range(1, m.ndim))) for m in jax.tree.leaves(server.masks))
    overlap = 1 - server.differ / jnp.maximum(2.0 * sizes, 1)[:, None]  # O
    pairs = server.trained[:, None] & server.trained & ~jnp.eye(len(overlap), dtype=bool)
    mean = jnp.sum(overlap * pairs) / jnp.maximum(jnp.sum(pairs), 1)
    largest = jnp.max(jnp.where(pairs, overlap, 0))
    least = mean + server.t / beta * (largest - mean) - 1e-6  # so that rounding decides no ties
    return pairs & (overlap >= least) & (server.t <= beta)  # none after beta, even if all tie


def aggregate(server: Server, uploads: tuple[Weights, PyTree], cohort: Client) -> Server:
    """Averages the models, and stores the clients' models and masks."""
    w, new = uploads
    masks = tree.put(server.masks, cohort.id, new)
    rows = jax.lax.map(partial(distances, masks), new)  # [M, C]
    return Server(
        w=tree.mix(cohort.weight, w),
        models=tree.put(server.models, cohort.id, w.params),
        masks=masks,
        differ=server.differ.at[cohort.id].set(rows).at[:, cohort.id].set(rows.T),
        trained=server.trained.at[cohort.id].set(True),
        t=server.t + 1,
    )


def updates(sent, id, upload):
    """Marks the model as an update of the one that was sent, and the mask as none."""
    w, mask = upload
    return wire.model_references(sent, w), wire.kept(mask)
