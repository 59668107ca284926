"""FedProx (Li et al., MLSys 2020, arXiv:1812.06127).

  send    w_t
  local   min_w F_i(w) + mu/2 ||w - w_t||^2      (eq. 2)
  server  as FedAvg

The squared norm is over all trainable parameters, without running statistics.
"""

import optax

from fedjax_lab import losses, tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Method, Task

RANGES = {"mu": log_uniform(1e-3, 1.0)}


@checked("method")
def fedprox(task: Task, *, mu: float = 0.01) -> Method:
    """mu: weight of the proximal term; 0 is FedAvg."""
    risk = losses.risk(task)

    def local(w_t, client, work):
        def loss(w, batch, key):
            value, out = risk(w, batch, key)
            return value + mu / 2 * tree.sq_norm(optax.tree.sub(w.params, w_t.params)), out  # eq. 2

        return work.train(w_t, loss), client.private

    return fedavg(task, local)
