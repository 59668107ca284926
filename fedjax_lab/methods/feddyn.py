"""FedDyn (Acar et al., ICLR 2021, arXiv:2111.04263).

  send    theta, the cloud model
  local   theta_k <- argmin_x  L_k(x) - <l_k, x> + alpha/2 ||x - theta||^2            (eq. 1)
          l_k <- l_k - alpha (theta_k - theta)                                        (eq. 2)
  server  h <- h - alpha/m sum_{k in P} (theta_k - theta)
          theta <- mean_{k in P} theta_k - h / alpha                                  (Alg. 1)

L_k = omega_k F_k with omega_k = n_k / mean n: the risk weighted by size. l_k is the paper's
gradient of L_k at theta_k; l_k and h start at zero; m is the number of all clients. As in the
authors' code, SGD runs on the objective divided by omega_k, and clips its gradient before the term
alpha x is added; the paper has no momentum. Means are uniform; running statistics are averaged by
size. The model that is scored is the participants' mean, not theta.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, sampling, tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Positive, checked, log_uniform
from fedjax_lab.types import Client, Exchange, Method, PyTree, State, Task, Weights

RANGES = {"alpha": log_uniform(1e-3, 0.1)}


class Server(NamedTuple):
    """The server's state; `mean` is the participants' mean, which is scored."""

    theta: Weights
    h: PyTree
    mean: Weights


@checked("method")
def feddyn(task: Task, *, alpha: Positive[float] = 0.1, clip: Positive[float] = 10.0) -> Method:
    """alpha: weight of the dynamic regularizer; clip: the largest norm of a step's gradient."""
    risk = losses.risk(task)

    def init(key, num_clients):
        w = task.init(key)
        zero = tree.zeros(w.params)
        return State(Server(w, zero, w), tree.repeat(zero, num_clients))

    def send(server, id):
        return server.theta

    def local(theta, client, work):
        l_k, omega = client.private, client.n / client.mean_n
        constant = tree.add(optax.tree.scale(1 / omega, l_k), theta.params, alpha / omega)
        optimizer = regularized(work.optimizer, constant, clip, alpha / omega)
        theta_k = work.train(theta, risk, optimizer=optimizer)
        moved = optax.tree.sub(theta_k.params, theta.params)
        return theta_k, tree.add(l_k, moved, -alpha)  # eq. 2

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, partial(aggregate, alpha)),),
        newcomer=lambda state: (state.server.mean, ()),
        sample=sampling.equal,
        scored=lambda server, id: server.mean,
    )


def regularized(
    optimizer: optax.GradientTransformation, constant: PyTree, clip: float, decay: float
) -> optax.GradientTransformation:
    """Returns the optimizer applied to clip(g - constant) + decay x."""
    return optax.chain(
        optax.stateless(lambda g, _: optim.clip(optax.tree.sub(g, constant), clip)),
        optax.add_decayed_weights(decay),  # eq. 1
        optimizer,
    )


def aggregate(alpha: float, server: Server, theta_k: Weights, cohort: Client) -> Server:
    """Computes h, the new cloud model, and the mean that is scored."""
    params = tree.mix(cohort.weight, theta_k.params)
    stats = tree.mix(cohort.n / jnp.sum(cohort.n), theta_k.stats)
    each = optax.tree.sub(theta_k.params, server.theta.params)  # leaves [M, ...]
    each = tree.where(cohort.arrived, each, tree.zeros(each))
    moved = jax.tree.map(lambda a: jnp.sum(a, 0), each)
    h = tree.add(server.h, moved, -alpha / cohort.num_clients[0])
    theta = tree.add(params, h, -1 / alpha)  # Alg. 1
    return Server(Weights(theta, stats), h, Weights(params, stats))
