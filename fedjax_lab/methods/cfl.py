"""CFL (Sattler et al., 2019, arXiv:1910.01991): clusters whose clients disagree are split in two.

  send    w_k, k = a(i) the client's cluster
  local   w_i <- SGD on F_i from w_k;  Delta_i = w_i - w_k
  server  where ||sum_i n_i/n Delta_i|| < eps1 and max_i ||Delta_i|| > eps2 in cluster k:
            bipartition with the least alpha, the largest cosine of a Delta_i of one part and a
            Delta_j of the other; the parts become clusters if sqrt((1 - alpha) / 2) > gamma
          w_k <- sum_i n_i/n w_i over the i with a(i) = k

All clients begin in one cluster, and there are at most `max_clusters`. In the paper all clients
take part in every round. Here the clients of the round determine whether their cluster is split.
The split then uses the last Delta_i of every member, which the server keeps; a member without a
Delta_i stays in the old cluster. As in the authors' code, a split comes before the means of its
round, and gamma is 0. That code bounds alpha by complete linkage, while this computes the least
alpha. Running statistics are averaged, but are not part of Delta. The paper assigns new clients by
its tree of splits; here they have no model.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import tree
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import BelowOne, Positive, checked, log_uniform
from fedjax_lab.types import Array, Exchange, Method, PyTree, State, Task, Weights

RANGES = {"eps1": log_uniform(0.05, 2.0), "eps2": log_uniform(0.2, 8.0)}


class Server(NamedTuple):
    """The server's state. K is `max_clusters`."""

    centers: Weights  # leaves [K, ...]; the first `used` are in use
    used: Array  # [] the number of clusters
    member: Array  # [C] a, the cluster of each client
    updates: PyTree  # the clients' last Delta_i, leaves [C, ...]
    trained: Array  # [C] whether the client has a Delta_i


@checked("method")
def cfl(
    task: Task,
    *,
    max_clusters: Positive[int] = 5,
    eps1: float = 0.4,
    eps2: float = 1.6,
    gamma: BelowOne = 0.0,
) -> Method:
    """max_clusters: the largest number of clusters.

    eps1: a cluster is split only if the norm of the mean update of its clients is below this.
    eps2: a cluster is split only if the largest norm of one client's update is above this; with
    a very large value, such as 1e9, no cluster is split, and CFL is FedAvg.
    gamma: assumed relative distance of a client's update from the expected update of its data
    distribution, at least 0 and below 1; a larger one prevents more splits.
    """
    K, method = max_clusters, fedavg(task)
    (plain,) = method.round

    def init(key, num_clients):
        w = task.init(key)
        trained, first = jnp.zeros(num_clients, bool), jnp.zeros(num_clients, jnp.int32)
        updates = tree.repeat(tree.zeros(w.params), num_clients)
        return State(Server(tree.repeat(w, K), jnp.int32(1), first, updates, trained), ())

    def send(server, id):
        return tree.take(server.centers, server.member[id])

    def shares(server, cohort):
        return jax.nn.one_hot(server.member[cohort.id], K).T * cohort.n  # [K, M]

    def aggregate(server, w, cohort):
        starts = tree.take(server.centers.params, server.member[cohort.id])
        delta = optax.tree.sub(w.params, starts)
        server = server._replace(
            updates=tree.put(server.updates, cohort.id, delta),
            trained=server.trained.at[cohort.id].set(True),
        )
        due = disagree(delta, shares(server, cohort), eps1, eps2)  # [K]
        server = jax.lax.cond(jnp.any(due), partial(split, gamma), lambda s, due: s, server, due)
        centers = clusters.average(shares(server, cohort), w, server.centers)
        return server._replace(centers=centers)

    return method._replace(
        init=init,
        round=(Exchange(send, plain.local, aggregate, alike=False),),
        newcomer=None,
        record=lambda state: {"clusters": state.server.member},
    )


def disagree(updates: PyTree, share: Array, eps1: float, eps2: float) -> Array:
    """Returns in which clusters the updates cancel out in the mean, but are not small, [K] bool.

    updates: Delta_i, leaves [M, ...].
    share: [K, M] the weight of each client in each cluster.
    """
    total = jnp.maximum(jnp.sum(share, 1, keepdims=True), 1e-9)
    largest = jnp.max((share > 0) * norms(updates), 1)
    return (norms(tree.mix(share / total, updates)) < eps1) & (largest > eps2)


def norms(trees: PyTree) -> Array:
    """Returns the norm of each of M trees, leaves [M, ...]."""
    return jnp.sqrt(jax.vmap(tree.sq_norm)(trees))


def split(gamma: float, server: Server, due: Array) -> Server:
    """Splits each cluster that is due into two, up to the largest number of clusters.

    The second part gets the next free number, and starts from the same model.

    due: [K] bool, the clusters to split.
    """
    alpha, K = cosines(server.updates), len(due)

    def one(k, carry):
        member, used, parent = carry
        second, across = bipartition(alpha, (member == k) & server.trained)
        made = due[k] & (used < K) & (jnp.sqrt((1 - across) / 2) > gamma)
        member = jnp.where(made & second, used, member)
        parent = jnp.where(made & (jnp.arange(K) == used), k, parent)
        return member, used + made, parent

    start = server.member, server.used, jnp.arange(K, dtype=jnp.int32)
    member, used, parent = jax.lax.fori_loop(0, K, one, start)
    return server._replace(centers=tree.take(server.centers, parent), member=member, used=used)


def cosines(updates: PyTree) -> Array:
    """Returns the cosine similarities [C, C] of all pairs of updates, leaves [C, ...]."""
    flat = [a.reshape(len(a), -1) for a in jax.tree.leaves(updates)]
    dots = sum(jnp.matmul(a, a.T, precision="highest") for a in flat)
    length = jnp.sqrt(jnp.diagonal(dots))
    return dots / jnp.maximum(length[:, None] * length, 1e-12)


def bipartition(alpha: Array, inside: Array) -> tuple[Array, Array]:
    """Splits the clients of a cluster into the two parts with the least similarity across them.

    Returns the members of the second part, [C] bool, and the largest alpha between the parts, which
    is infinite for fewer than two clients. The parts remain when the weakest edge is removed from
    the maximum spanning tree; no other split has a smaller largest alpha across the parts. Prim's
    algorithm adds the clients one by one, and those before the weakest edge are one part.

    alpha: [C, C] cosine similarities.
    inside: [C] bool, the clients of the cluster.
    """

    def add(carry, _):
        outside, reach = carry
        j = jnp.argmax(jnp.where(outside, reach, -jnp.inf))
        edge = jnp.where(jnp.any(outside), reach[j], jnp.inf)
        return (outside.at[j].set(False), jnp.maximum(reach, alpha[j])), (j, edge)

    first, C = jnp.argmax(inside), len(inside)
    start = inside.at[first].set(False), alpha[first]
    _, (order, edges) = jax.lax.scan(add, start, None, length=C)
    later = (jnp.arange(C) >= jnp.argmin(edges)) & (edges < jnp.inf)
    second = jnp.zeros(C, bool).at[jnp.where(later, order, C)].set(True)
    return second, jnp.min(edges)
