"""FedLC (Zhang et al., ICML 2022, arXiv:2209.00189).

  send    w_t
  local   SGD on the cross-entropy of calibrated logits o_c - tau n_c^(-1/4)
  server  as FedAvg

n_c counts the client's own examples of class c. The paper leaves the true class out of the
denominator, and the loss without a lower bound; here it is in (`exclude_true` leaves it out). A
class without examples counts as 1e-8 of one, so its margin is 100 tau; tau = 1 removes it.
Predictions are not calibrated.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import log_uniform
from fedjax_lab.types import Method, Task

RANGES = {"tau": log_uniform(0.01, 1.0)}


def fedlc(task: Task, *, tau: float = 1.0, exclude_true: bool = False) -> Method:
    """tau: scale of the margins; 0 is FedAvg, but for exclude_true.

    exclude_true: leave out the true class in the denominator of the loss."""

    def unbounded(logits, batch):
        true = jax.nn.one_hot(batch.y, task.num_classes, dtype=bool)
        others = jax.nn.logsumexp(jnp.where(true, -jnp.inf, logits), 1)
        return losses.masked_mean(others - jnp.sum(logits, 1, where=true), batch.mask)

    risk = unbounded if exclude_true else losses.cross_entropy

    def local(w_t, client, work):
        margin = tau * jnp.maximum(client.label_count, 1e-8) ** -0.25  # [K]

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            return risk(out.logits - margin, batch), out

        return work.train(w_t, loss), client.private

    return fedavg(task, local)
