"""FeSEM (Long et al., World Wide Web 2023, arXiv:2005.01026), as in the FedConcat paper.

  send    c_k of the cluster nearest to the client's last model: k_i = argmin_k ||w_i - c_k||^2
  local   min_w F_i(w) + mu/2 ||w - c_{k_i}||^2 from c_{k_i}
  server  c_k = mean by size of the w_i with k_i = k

The server keeps every client's last model. Until a client has one, it belongs to a random cluster;
these first clusters have equal sizes. In FedConcat's released code the proximal term has no
gradient, which corresponds to mu = 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import streams, tree
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.methods.fedprox import fedprox
from fedjax_lab.ranges import checked, choice, log_uniform
from fedjax_lab.types import Array, Exchange, Method, PyTree, State, Task

RANGES = {"num_clusters": choice(2, 3, 4), "mu": log_uniform(1e-2, 1.0)}


class Server(NamedTuple):
    """The server's state."""

    centers: PyTree  # leaves [K, ...]
    models: PyTree  # w_i, the clients' last models, leaves [C, ...]
    trained: Array  # [C] whether the client has a w_i
    group: Array  # [C] the random cluster of a client without a w_i


@checked("method")
def fesem(task: Task, *, num_clusters: clusters.Number = 2, mu: float = 0.1) -> Method:
    """num_clusters: K, the number of clusters. mu: weight of the proximal term."""
    method = fedprox(task, mu=mu)
    (proximal,) = method.round
    K = num_clusters

    def init(key, num_clients):
        clusters.check_number(K, num_clients)
        w = task.init(key)
        group = jax.random.permutation(streams.extra(key), num_clients) % K
        trained = jnp.zeros(num_clients, bool)
        return State(Server(tree.repeat(w, K), tree.repeat(w, num_clients), trained, group), ())

    def nearest(server, id):
        w_i, centers = tree.take(server.models, id).params, server.centers.params
        squares = jax.vmap(lambda c: tree.sq_norm(optax.tree.sub(w_i, c)))(centers)  # [K]
        return jnp.where(server.trained[id], jnp.argmin(squares), server.group[id])

    def send(server, id):
        return tree.take(server.centers, nearest(server, id))

    def aggregate(server, w, cohort):
        k = jax.vmap(lambda id: nearest(server, id))(cohort.id)  # [M]
        share = jax.nn.one_hot(k, K).T * cohort.n  # [K, M]
        return server._replace(
            centers=clusters.average(share, w, server.centers),
            models=tree.put(server.models, cohort.id, w),
            trained=server.trained.at[cohort.id].set(True),
        )

    exchange = Exchange(send, proximal.local, aggregate, alike=False)
    return method._replace(init=init, round=(exchange,), newcomer=None)
