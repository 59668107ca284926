"""FedLC (Zhang et al., ICML 2022, arXiv:2209.00189): logits calibrated by the class counts.

  send    w_t
  local   SGD on the cross-entropy of calibrated logits o_c - tau n_c^(-1/4)
  server  as FedAvg

n_c is the number of the client's examples of class c. The paper excludes the true class from the
denominator of the softmax, so that its loss has no lower bound; here it is included unless
`exclude_true` is set. n_c is at least 1e-8, so that a class without examples has a margin of
100 tau; with tau = 1 such a class has almost no effect on the loss. Predictions are not calibrated.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Method, Task

RANGES = {"tau": log_uniform(0.01, 1.0)}


@checked("method")
def fedlc(task: Task, *, tau: float = 1.0, exclude_true: bool = False) -> Method:
    """tau: scale of the margins; 0 is FedAvg, unless exclude_true is set.

    exclude_true: whether to exclude the true class from the denominator of the softmax."""

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
