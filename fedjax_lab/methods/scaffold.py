"""SCAFFOLD (Karimireddy et al., ICML 2020, arXiv:1910.06378): control variates against drift.

  send    w_t, c
  local   y <- y - eta (grad F_i(y) - c_i + c), K steps from w_t                (eq. 3)
          c_i+ = c_i - c + (w_t - y) / (K eta)                                  (eq. 4)
  server  w_{t+1} = w_t + eta_g sum_i p_i (y_i - w_t),  p_i = 1/|S|
          c <- c + |S|/C mean_{i in S} (c_i+ - c_i)                             (eq. 5)

This is option II of the paper. All control variates start at zero, so that c is the mean of all c_i
while no upload is lost. With weights=size, p_i = n_i/n as in NIID-Bench: the mean of the models is
by size, but c is still a uniform mean. Running statistics are averaged by size. K eta is the
distance that the clients' optimizer moves along a constant gradient of 1 in K steps; with momentum
it is longer than K steps of eta. With Adam c_i is not a gradient, so use SGD. Weight decay is part
of the drift, as in NIID-Bench.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, sampling, tree, wire
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Exchange, Method, State, Task, Weights

RANGES = {"server_lr": log_uniform(0.1, 1.0)}


@checked("method")
def scaffold(
    task: Task, *, server_lr: float = 1.0, weights: Literal["uniform", "size"] = "uniform"
) -> Method:
    """server_lr: eta_g, the server's learning rate.

    weights: the weights p of the models' mean: uniform, or size (n_i/n).
    """
    risk = losses.risk(task)

    def init(key, num_clients):
        w = task.init(key)
        zero = tree.zeros(w.params)
        return State((w, zero), tree.repeat(zero, num_clients))

    def send(server, id):
        return server

    def local(message, client, work):
        (w_t, c), c_i = message, client.private
        corrected = optax.stateless(lambda g, _: tree.add(optax.tree.sub(g, c_i), c))  # eq. 3
        y = work.train(w_t, risk, optimizer=optax.chain(corrected, work.optimizer))
        drift = optax.tree.scale(
            1 / optim.reach(work.optimizer, work.steps), optax.tree.sub(w_t.params, y.params)
        )
        c_next = tree.add(optax.tree.sub(c_i, c), drift)  # eq. 4
        return (y, optax.tree.sub(c_next, c_i)), c_next

    def step(server, uploads, cohort):
        (w_t, c), (y, change) = server, uploads
        mean = tree.mix(cohort.weight, y.params)
        params = tree.add(mean, optax.tree.sub(w_t.params, mean), 1 - server_lr)
        c = jax.tree.map(lambda a, d: a + d.sum(0) / cohort.num_clients[0], c, change)  # eq. 5
        return Weights(params, tree.mix(cohort.n / jnp.sum(cohort.n), y.stats)), c

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, step, updates=updates),),
        predict=lambda message, client, x: task.apply(message[0], x).logits,
        newcomer=lambda state: (state.server, ()),
        sample=sampling.equal if weights == "uniform" else sampling.by_size,
    )


def updates(message, id, upload):
    """Marks the model as an update of w_t, and the control variate's change as an update itself."""
    (w_t, _), (y, change) = message, upload
    return wire.model_references(w_t, y), wire.itself(change)
