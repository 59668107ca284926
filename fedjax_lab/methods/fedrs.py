"""FedRS (Li and Zhan, KDD 2021, doi:10.1145/3447548.3467254): restricted softmax.

  send    w_t
  local   SGD on the cross-entropy of the logits alpha_c W_c h + b_c
          alpha_c = 1 for the client's classes, alpha for the others
  server  as FedAvg

The authors' networks have no bias in the head; if the head has one it is not scaled, so that only
the updates of W for absent classes are restricted. Predictions are not restricted.
"""

import jax.numpy as jnp

from fedjax_lab import losses
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Share, checked, uniform
from fedjax_lab.types import Method, Task

RANGES = {"alpha": uniform(0.1, 0.9)}


@checked("method")
def fedrs(task: Task, *, alpha: Share = 0.5, continuous: bool = False) -> Method:
    """alpha: scale of the logits of absent classes; 1 is FedAvg.

    continuous: whether the scale decreases with the number of examples, from 1 for the most common
    class to alpha for absent classes, as in the authors' code.
    """

    def local(w_t, client, work):
        n = client.label_count
        present = n / jnp.max(n) if continuous else (n > 0).astype(n.dtype)
        scale = (1 - alpha) * present + alpha  # [K]

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            bias = w.params[task.head].get("bias", 0.0)
            restricted = scale * out.logits + (1 - scale) * bias
            return losses.cross_entropy(restricted, batch), out

        return work.train(w_t, loss), client.private

    return fedavg(task, local)
