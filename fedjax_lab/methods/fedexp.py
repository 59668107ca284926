"""FedExP (Jhunjhunwala et al., ICLR 2023, arXiv:2301.09604): FedAvg with extrapolation.

  send    w_t
  local   w_i <- SGD on F_i from w_t;  Delta_i = w_t - w_i
  server  Delta = sum_i p_i Delta_i
          eta_g = max(1, sum_i p_i ||Delta_i||^2 / (2 (||Delta||^2 + eps)))
          w_{t+1} = w_t - eta_g Delta

p_i = n_i/n over the sampled clients; in the paper it is uniform. Norms are over all trainable
parameters. The model that is scored is the mean of the last two w_t, because w_t oscillates
according to the paper. Running statistics are averaged.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import tree
from fedjax_lab.methods.fedavg import aggregate, fedavg
from fedjax_lab.ranges import Positive, checked, log_uniform
from fedjax_lab.types import Exchange, Method, State, Task, Weights

RANGES = {"eps": log_uniform(1e-4, 1.0)}


@checked("method")
def fedexp(task: Task, *, eps: Positive[float] = 1e-3) -> Method:
    """eps: keeps eta_g finite if Delta is 0; with a very large eps eta_g is 1, as in FedAvg."""
    method = fedavg(task)
    (plain,) = method.round

    def init(key, num_clients):
        w = task.init(key)
        return State((w, w), ())  # the last two

    def step(server, w, cohort):
        w_t, _ = server
        mean = aggregate(w_t, w, cohort)
        squares = jax.vmap(lambda v: tree.sq_norm(optax.tree.sub(v, w_t.params)))(w.params)  # [M]
        delta = optax.tree.sub(mean.params, w_t.params)
        ratio = jnp.sum(cohort.weight * squares) / (2 * (tree.sq_norm(delta) + eps))
        beyond = jnp.maximum(1, ratio) - 1
        return Weights(tree.add(mean.params, delta, beyond), mean.stats), w_t

    def middle(server):
        new, old = server
        return Weights(optax.tree.scale(0.5, tree.add(new.params, old.params)), new.stats)

    return method._replace(
        init=init,
        round=(Exchange(lambda server, id: server[0], plain.local, step),),
        scored=lambda server, id: middle(server),
        newcomer=lambda state: (middle(state.server), ()),
    )
