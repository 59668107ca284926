"""FedSAM (Qu et al., ICML 2022, arXiv:2206.02618): clients minimize the loss and its sharpness.

  send    w_t
  local   w <- w - eta grad F_i(w + rho g / ||g||),  g = grad F_i(w) on the same batch
  server  as FedAvg

The norm is over all trainable parameters. Both gradients use the same dropout; the running
statistics are those of the first forward pass. Weight decay and gradient clipping only affect the
second gradient. The paper's mean is uniform, and its server may have a learning rate.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Method, Task

RANGES = {"rho": log_uniform(1e-3, 0.5)}


@checked("method")
def fedsam(task: Task, *, rho: float = 0.1) -> Method:
    """rho: the radius of the ascent step before the gradient is computed; 0 is FedAvg."""
    risk = losses.risk(task)

    def local(w_t, client, work):
        def loss(w, batch, key):
            def value(params):
                return risk(w._replace(params=params), batch, key)

            g, out = jax.grad(value, has_aux=True)(jax.lax.stop_gradient(w.params))
            step = rho / jnp.maximum(jnp.sqrt(tree.sq_norm(g)), 1e-12)
            sharp, _ = value(tree.add(w.params, g, step))
            return sharp, out

        return work.train(w_t, loss), client.private

    return fedavg(task, local)
