"""FedAMP (Huang et al., AAAI 2021, arXiv:2007.03797): federated attentive message passing.

  send    u_i = sum_j xi_ij w_j,  xi_ij = alpha A'(||w_i - w_j||^2) for j != i,  sum_j xi_ij = 1
  local   w_i <- SGD on F_i(w) + pull/2 ||w - u_i||^2 from w_i
  server  keeps every client's last w_i

A(x) = 1 - e^{-x / sigma}, so that A'(x) = e^{-x / sigma} / sigma; `pull` is the paper's
lambda / alpha. alpha must be small enough for xi_ii to be at least 0; with its default, sigma / C
for C clients, u_i is the mean of all models where sigma is large. In the paper all clients take
part in every round; here the other clients keep their last model. PFLlib only uses the models of
the round and does not bound xi_ii. The server keeps C models and, in memory O(C^2), their
distances.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods._pairs import distances
from fedjax_lab.methods._sizes import check_pairs
from fedjax_lab.methods.ditto import drawn_to
from fedjax_lab.ranges import Positive, checked, log_uniform
from fedjax_lab.types import Array, Client, Exchange, Method, State, Task, Weights

RANGES = {"sigma": log_uniform(0.1, 1000.0), "pull": log_uniform(0.01, 10.0)}


class Server(NamedTuple):
    """The server's state."""

    models: Weights  # w_i, leaves [C, ...]
    far: Array  # [C, C] squared distances of their parameters


@checked("method")
def fedamp(
    task: Task, *, sigma: Positive[float] = 10.0, alpha: float = 0.0, pull: float = 0.1
) -> Method:
    """sigma: the squared distance over which attention falls to 1/e.

    alpha: how strongly clients attend to each other; 0 stands for sigma / C, with C clients.
    pull: weight of the pull of w_i to u_i; with 0 it is Local, but with sampled clients.
    """
    risk = losses.risk(task)

    def init(key, num_clients):
        check_pairs("fedamp", num_clients)
        _check_alpha(alpha, sigma, num_clients)
        models = tree.repeat(task.init(key), num_clients)
        return State(Server(models, jnp.zeros((num_clients, num_clients))), models)

    def local(u, client, work):
        drawn = drawn_to(u.params, pull, work.optimizer)
        w = work.train(client.private, risk, optimizer=drawn)
        return w, w

    def predict(u, client, x):
        return task.apply(client.private, x).logits

    exchange = Exchange(partial(attend, sigma, alpha), local, aggregate, alike=False)
    return Method(
        init=init, round=(exchange,), predict=predict, newcomer=None, sample=sampling.by_size
    )


def attend(sigma: float, alpha: float, server: Server, id: Array) -> Weights:
    """Returns u_i."""
    far = server.far[id]  # [C]
    step = alpha / sigma if alpha else 1 / len(far)
    xi = jnp.where(jnp.arange(len(far)) == id, 0, step * jnp.exp(-far / sigma))
    return tree.mix(xi.at[id].set(1 - jnp.sum(xi)), server.models)


def aggregate(server: Server, w: Weights, cohort: Client) -> Server:
    """Stores the new models, and updates the distances of all pairs."""
    models = tree.put(server.models, cohort.id, w)
    rows = jax.lax.map(partial(distances, models.params), w.params)  # [M, C]
    far = server.far.at[cohort.id].set(rows).at[:, cohort.id].set(rows.T)
    return Server(models, far)


def _check_alpha(alpha, sigma, num_clients):
    if isinstance(alpha, float) and alpha * (num_clients - 1) > sigma:
        raise BadInput(
            f"config.method.alpha must be at most sigma / {num_clients - 1} ="
            f" {sigma / (num_clients - 1):.3g} for {num_clients} clients, got {alpha}"
        )
