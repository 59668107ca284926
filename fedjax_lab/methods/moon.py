"""MOON (Li et al., CVPR 2021, arXiv:2103.16257): model-contrastive learning.

  send    w_t
  local   SGD on F_i(w) + mu l_con(w)
          l_con = -log e^{s_glob/tau} / (e^{s_glob/tau} + e^{s_prev/tau})          (eq. 3)
  server  as FedAvg

s_glob is the cosine between the projections of x by w and by w_t, and s_prev is the cosine between
the projections by w and by the last local model of the client; without a last local model l_con is
left out. Both reference models run in evaluation mode and get no gradient.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models.task import with_projection
from fedjax_lab.ranges import Positive, checked, choice, log_uniform
from fedjax_lab.types import Method, State, Task

RANGES = {"mu": log_uniform(1e-3, 10.0), "tau": choice(0.1, 0.5, 1.0)}


@checked("method")
def moon(
    task: Task,
    *,
    mu: float = 1.0,
    tau: Positive[float] = 0.5,
    projection: Literal["none", "mlp256"] = "none",
) -> Method:
    """mu: weight of the contrastive loss; 0 is FedAvg. tau: temperature of the contrastive loss.

    projection: none, which compares the features themselves (NIID-Bench); or mlp256, which adds two
    layers between features and head to the model (the authors' code).
    """
    if projection == "mlp256":
        task = with_projection(task, 256)

    def init(key, num_clients):
        w = task.init(key)
        return State(w, (tree.repeat(w, num_clients), jnp.zeros(num_clients)))

    def local(w_t, client, work):
        w_prev, seen = client.private

        def references(batch):
            return [losses.pooled(task.apply(v, batch.x).features) for v in (w_t, w_prev)]

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            z = losses.pooled(out.features)
            s_glob, s_prev = (losses.cosine(z, other) for other in batch.references)
            l_con = jax.nn.softplus((s_prev - s_glob) / tau)  # eq. 3
            contrast = losses.masked_mean(l_con, batch.mask)
            return task.loss(out.logits, batch) + mu * seen * contrast, out

        w = work.train(w_t, loss, references=references)
        return w, (w, jnp.float32(1))

    return fedavg(task, local)._replace(init=init)
