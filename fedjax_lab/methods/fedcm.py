"""FedCM (Xu et al., 2021, arXiv:2106.10874): client-level momentum from the server.

  send    w_t, Delta_t
  local   y <- y - eta (alpha grad F_i(y) + (1 - alpha) Delta_t), K steps from w_t
  server  Delta_{t+1} = sum_i n_i/n (w_t - y_i) / (K_i eta)
          w_{t+1} = w_t - server_lr sum_i n_i/n (w_t - y_i)

Delta_0 is zero. In the paper all clients make K steps, the mean is uniform, and the server steps
along Delta_{t+1}; with unequal K_i each client's difference is divided by its own K_i. K_i eta is
the distance that the clients' optimizer moves along a constant gradient of 1 in K_i steps; it
should be SGD without momentum. Weight decay is added to the mixed direction, and gradient clipping
only affects grad F_i. A client receives two models, the second without running statistics, and
sends one.
"""

import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, tree, wire
from fedjax_lab.methods.fedavg import aggregate, fedavg, send
from fedjax_lab.ranges import Positive, PositiveShare, checked, log_uniform
from fedjax_lab.types import Exchange, Method, State, Task, Weights

RANGES = {"alpha": log_uniform(0.01, 1.0), "server_lr": log_uniform(0.1, 1.0)}


@checked("method")
def fedcm(task: Task, *, alpha: PositiveShare = 0.1, server_lr: Positive[float] = 1.0) -> Method:
    """alpha: weight of the client's gradient in a step; 1 is FedAvg.

    server_lr: the server's learning rate.
    """
    risk = losses.risk(task)

    def init(key, num_clients):
        w = task.init(key)
        return State((w, tree.zeros(w.params)), ())

    def local(message, client, work):
        w_t, delta = message
        pull = optax.tree.scale(1 - alpha, delta)
        mixed = optax.stateless(lambda g, _: tree.add(pull, g, alpha))
        y = work.train(w_t, risk, optimizer=optax.chain(mixed, work.optimizer))
        return (y, optim.reach(work.optimizer, work.steps)), client.private

    def step(server, uploads, cohort):
        (w_t, _), (y, reach) = server, uploads
        mean = aggregate(w_t, y, cohort)
        back = optax.tree.sub(w_t.params, mean.params)
        share = cohort.weight / jnp.where(cohort.arrived, reach, 1)
        delta = tree.mix(share, optax.tree.sub(w_t.params, y.params))
        return Weights(tree.add(mean.params, back, 1 - server_lr), mean.stats), delta

    def updates(message, id, upload):
        (w_t, _), (y, reach) = message, upload
        return wire.model_references(w_t, y), wire.kept(reach)

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, step, updates=updates),),
        predict=lambda message, client, x: task.apply(message[0], x).logits,
        newcomer=lambda state: (state.server, ()),
    )
