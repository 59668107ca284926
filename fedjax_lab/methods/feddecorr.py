"""FedDecorr (Shi et al., ICLR 2023, arXiv:2210.00226): decorrelated features.

  send    w_t
  local   SGD on F_i(w) + beta ||K||_F^2 / d^2
  server  as FedAvg

K [d, d] is the correlation matrix of the d features, the input of the head, over the batch. A
feature that is constant in the batch has zero correlation with all others. In the authors' code the
term is the mean of the squared off-diagonal entries times the batch size, with the same default
weight beta = 0.1.
"""

import jax.numpy as jnp

from fedjax_lab import losses, tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Array, Method, Task

RANGES = {"beta": log_uniform(1e-2, 1.0)}


@checked("method")
def feddecorr(task: Task, *, beta: float = 0.1) -> Method:
    """beta: weight of the decorrelation term; 0 is FedAvg."""

    def local(w_t, client, work):
        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            K = correlations(losses.pooled(out.features), batch.mask)
            return task.loss(out.logits, batch) + beta * jnp.mean(K**2), out

        return work.train(w_t, loss), client.private

    return fedavg(task, local)


def correlations(h: Array, mask: Array) -> Array:
    """Returns the correlations [D, D] of features h [B, D] over the rows where mask [B] is 1."""
    h = (h - losses.masked_mean(h, mask)) * mask[:, None]
    covariance = tree.mix(h.T / jnp.maximum(jnp.sum(mask), 1), h)
    scale = 1 / jnp.sqrt(jnp.diag(covariance) + 1e-8)
    return scale[:, None] * covariance * scale
