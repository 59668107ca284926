"""FedDisco (Ye et al., ICML 2023, arXiv:2305.19229): lower weights for unbalanced clients.

  send    w_t
  local   w_i <- SGD on F_i from w_t
  server  w_{t+1} = sum_i p_i w_i,  p_i in proportion to max(0, n_i/n - a d_i + b)

d_i measures how far the client's class distribution is from the uniform one: by the
Kullback-Leibler divergence, divided by its sum over the sampled clients as in the authors' code, or
by the Euclidean distance. A client uploads d_i with its model. If no p_i is above 0, p_i = n_i/n.
Running statistics are averaged like parameters.
"""

from typing import Literal

import jax.numpy as jnp

from fedjax_lab import losses, tree, wire
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.ranges import checked, uniform
from fedjax_lab.types import Array, Client, Exchange, Method, Task

RANGES = {"a": uniform(0.1, 1.0), "b": uniform(0.0, 0.5)}


@checked("method")
def feddisco(
    task: Task, *, a: float = 0.5, b: float = 0.1, distance: Literal["kl", "l2"] = "kl"
) -> Method:
    """a: weight of the distance d_i. b: a constant that is added to the weight of every client.

    With a = b = 0 the method is FedAvg.

    distance: the measure d_i: kl, the Kullback-Leibler divergence, or l2, the Euclidean distance.
    """
    risk = losses.risk(task)

    def local(w_t, client, work):
        return (work.train(w_t, risk), discrepancy(client.label_count, distance)), client.private

    def aggregate(w_t, uploads, cohort):
        w, d = uploads
        if distance == "kl":
            d = d / jnp.maximum(jnp.sum(d), 1e-9)
        return tree.mix(shares(cohort, a * d - b), w)

    def updates(w_t, id, upload):
        w, d = upload
        return wire.model_references(w_t, w), wire.kept(d)

    exchange = Exchange(send, local, aggregate, updates=updates)
    return fedavg(task)._replace(round=(exchange,))


def discrepancy(label_count: Array, distance: str) -> Array:
    """Returns d_i, how far the distribution of label_count [K] is from the uniform one."""
    K = len(label_count)
    share = label_count / jnp.maximum(jnp.sum(label_count), 1)
    if distance == "l2":
        return jnp.sqrt(jnp.sum((share - 1 / K) ** 2))
    return jnp.sum(share * jnp.log(K * jnp.where(share > 0, share, 1)))


def shares(cohort: Client, minus: Array) -> Array:
    """Returns p [M], proportional to max(0, n_i/n - minus_i), or n_i/n where all of these are 0."""
    p = jnp.maximum(0, cohort.weight - minus) * cohort.arrived
    total = jnp.sum(p)
    return jnp.where(total > 0, p / jnp.where(total > 0, total, 1), cohort.weight)
