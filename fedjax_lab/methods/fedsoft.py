"""FedSoft (Ruan and Joe-Wong, AAAI 2022, arXiv:2112.06053), as in the FedConcat paper.

  send    all K centers c_1 .. c_K
  local   every tau rounds: u_is = max(sigma, share of examples on which c_s has the least loss)
          min_w F_i(w) + sum_s u_is mu/2 ||w - c_s||^2 from the c_s of the largest u_is
  server  c_s = sum_i n_i u_is w_i / sum_i n_i u_is

The original FedSoft starts from the client's last model instead of a center (which gives accuracies
at chance level according to the FedConcat paper), and samples clients for each cluster. Losses are
compared on the same examples, in evaluation mode. Centers start from different weights, and u_is
from 1/K; running statistics are averaged like parameters. In FedConcat's released code the proximal
term has no gradient, which corresponds to mu = 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.ranges import Positive, checked, choice, log_uniform
from fedjax_lab.types import Array, Exchange, Method, PyTree, State, Task, Weights, Work

RANGES = {"num_clusters": choice(2, 3, 4), "mu": log_uniform(1e-3, 1.0)}

SIGMA = 1e-4  # lower bound of u_is


class Server(NamedTuple):
    """The server's state."""

    centers: PyTree  # leaves [K, ...]
    t: Array  # the number of rounds so far


@checked("method")
def fedsoft(
    task: Task, *, num_clusters: clusters.Number = 2, mu: float = 0.01, tau: Positive[int] = 2
) -> Method:
    """num_clusters: K, the number of clusters. mu: weight of the proximal term.

    tau: the number of rounds from one estimate of u to the next.
    """
    risk = losses.risk(task)
    K = num_clusters

    def init(key, num_clients):
        clusters.check_number(K, num_clients)
        centers = clusters.distinct_starts(task, key, K)
        return State(Server(centers, jnp.int32(0)), jnp.full((num_clients, K), 1 / K))

    def send(server, id):
        return server.centers, server.t % tau == 0

    def local(message, client, work):
        centers, due = message
        u = jnp.where(due, importance(task, centers, work, due), client.private)  # [K]

        def loss(w, batch, key):
            value, out = risk(w, batch, key)
            squares = jax.vmap(lambda c: tree.sq_norm(optax.tree.sub(w.params, c)))(centers.params)
            return value + mu / 2 * jnp.sum(u * squares), out

        return (u, work.train(tree.take(centers, jnp.argmax(u)), loss)), u

    def aggregate(server, uploads, cohort):
        u, w = uploads  # [M, K], leaves [M, ...]
        return Server(clusters.average(u.T * cohort.n, w, server.centers), server.t + 1)

    def predict(message, client, x):
        centers, _ = message
        return task.apply(tree.take(centers, jnp.argmax(client.private)), x).logits

    return Method(
        init=init,
        round=(Exchange(send, local, aggregate, updates=updates, alike=False),),
        predict=predict,
        newcomer=None,
        sample=sampling.by_size,
    )


def updates(message, id, upload):
    """Marks w as an update of the center with the largest u, and u as none."""
    (centers, _), (u, w) = message, upload
    return wire.kept(u), wire.model_references(tree.take(centers, jnp.argmax(u)), w)


def importance(task: Task, centers: Weights, work: Work, due: Array) -> Array:
    """Returns u [K] of one client; only valid, and only computed, where `due` holds."""
    K = len(jax.tree.leaves(centers)[0])

    def best(batch):
        def each(c):
            return task.objective.losses(task.apply(c, batch.x).logits, batch.y)

        loss = jax.vmap(each)(centers)  # [K, B]
        s = jax.nn.one_hot(jnp.argmin(loss, 0), K)  # [B, K]
        return losses.masked_mean(s, batch.mask)

    return jnp.maximum(SIGMA, work.mean(best, when=due))
