"""FedADMM (Gong et al., ICDE 2022, arXiv:2204.03529): the augmented Lagrangian of consensus.

  send    theta
  local   w_i+ = argmin_w F_i(w) + <y_i, w - theta> + rho/2 ||w - theta||^2, by SGD from theta
          y_i+ = y_i + rho (w_i+ - theta)
          Delta_i = (w_i+ + y_i+ / rho) - (w_i + y_i / rho)
  server  theta <- theta + server_lr/C sum_{i in S} Delta_i

A client keeps y_i, which starts at zero, and w_i, which starts at the first theta. The paper's step
along the mean Delta_i is server_lr |S|/C. While no upload is lost, theta is the mean of all
w_i + y_i/rho for server_lr = 1; the paper's experiments use larger steps, with which theta may
diverge. In the authors' code theta replaces the last w_i in Delta_i. Means are uniform; running
statistics are averaged by size. The clients' optimizer, with its momentum and weight decay,
minimizes the whole objective.
"""

import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.ranges import Positive, checked, log_uniform
from fedjax_lab.types import Exchange, Method, State, Task, Weights

RANGES = {"rho": log_uniform(1e-3, 1.0), "server_lr": log_uniform(0.3, 3.0)}


@checked("method")
def fedadmm(task: Task, *, rho: Positive[float] = 0.01, server_lr: Positive[float] = 1.0) -> Method:
    """rho: weight of the proximal term; server_lr: step size of the server, in units of |S|/C."""
    risk = losses.risk(task)

    def init(key, num_clients):
        w = task.init(key)
        return State(w, tree.repeat((w.params, tree.zeros(w.params)), num_clients))

    def local(theta, client, work):
        w_i, y_i = client.private

        def loss(w, batch, key):
            value, out = risk(w, batch, key)
            gap = optax.tree.sub(w.params, theta.params)
            return value + tree.dot(y_i, gap) + rho / 2 * tree.sq_norm(gap), out

        w = work.train(theta, loss)
        moved = optax.tree.sub(w.params, theta.params)  # (y_i+ - y_i) / rho
        delta = tree.add(optax.tree.sub(w.params, w_i), moved)
        return Weights(delta, w.stats), (w.params, tree.add(y_i, moved, rho))

    def step(theta, uploads, cohort):
        rate = server_lr * jnp.sum(cohort.arrived) / cohort.num_clients[0]
        params = tree.add(theta.params, tree.mix(cohort.weight, uploads.params), rate)
        return Weights(params, tree.mix(cohort.n / jnp.sum(cohort.n), uploads.stats))

    def updates(theta, id, upload):
        return wire.update_references(upload)

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, step, updates=updates),),
        sample=sampling.equal,
    )
