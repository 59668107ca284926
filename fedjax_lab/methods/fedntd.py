"""FedNTD (Lee et al., NeurIPS 2022, arXiv:2106.03097): distillation of the not-true classes.

  send    w_t
  local   SGD on F_i(w) + beta tau^2 KL(q_t || q)
  server  as FedAvg

q and q_t are the softmax of the logits of w and of w_t, divided by tau, both without the logit of
the true class. The paper's formula has no tau^2, and its tau is 1; the authors' code has multiplied
the term by tau^2 since its release of November 2022. The logits of w_t are computed in evaluation
mode and get no gradient.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Positive, checked, choice, log_uniform
from fedjax_lab.types import Array, Method, Task

RANGES = {"beta": log_uniform(0.1, 3.0), "tau": choice(1.0, 2.0, 3.0)}

REMOVED = -1e9  # the logit of a class that is left out of the softmax


@checked("method")
def fedntd(task: Task, *, beta: float = 1.0, tau: Positive[float] = 1.0) -> Method:
    """beta: weight of the distillation; 0 is FedAvg. tau: temperature of the distillation."""

    def log_others(logits: Array, y: Array) -> Array:
        """Returns log q, [B, K]."""
        true = jax.nn.one_hot(y, task.num_classes, dtype=bool)
        return jax.nn.log_softmax(jnp.where(true, REMOVED, logits / tau))

    def local(w_t, client, work):
        def references(batch):
            return log_others(task.apply(w_t, batch.x).logits, batch.y)

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            log_q = log_others(out.logits, batch.y)
            kl = optax.losses.kl_divergence_with_log_targets(log_q, batch.references)
            distilled = losses.masked_mean(kl, batch.mask)
            return losses.cross_entropy(out.logits, batch) + beta * tau**2 * distilled, out

        return work.train(w_t, loss, references=references), client.private

    return fedavg(task, local)
