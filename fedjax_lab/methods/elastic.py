"""Elastic aggregation (Chen et al., CVPR 2023), pages 12187 to 12197 of the proceedings.

  send    w_t
  local   w_i <- SGD on F_i from w_t;  Omega_i = mean over batches of |grad ||f(w_t; x)||^2|
  server  Omega = sum_i n_i/n Omega_i;  zeta = 1 + tau - Omega / max Omega
          w_{t+1} = w_t + zeta sum_i n_i/n (w_i - w_t)

f is the model's logits in evaluation mode; the squared norm is averaged over the examples of a
batch and needs no labels. Each parameter has its own zeta; the maximum is over the parameter's
array. The paper uses a subset of the examples, and a moving average over batches instead of the
mean. Running statistics are averaged. A client receives one model and sends two, w_i and Omega_i.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, wire
from fedjax_lab.methods.fedavg import aggregate, fedavg, send
from fedjax_lab.ranges import Share, checked, uniform
from fedjax_lab.types import Array, Exchange, Method, Task, Weights

RANGES = {"tau": uniform(0.0, 1.0)}


@checked("method")
def elastic(task: Task, *, tau: Share = 0.5) -> Method:
    """tau: zeta of the most sensitive parameter of an array; of insensitive ones it is 1 + tau."""
    risk = losses.risk(task)

    def local(w_t, client, work):
        def size(params, batch):
            f = task.apply(w_t._replace(params=params), batch.x).logits
            return losses.masked_mean(jnp.sum(f.reshape(len(f), -1) ** 2, 1), batch.mask)

        def sensitivity(batch):
            return jax.tree.map(jnp.abs, jax.grad(size)(w_t.params, batch))

        return (work.train(w_t, risk), work.mean(sensitivity)), client.private

    def step(w_t, uploads, cohort):
        w, omega = uploads
        mean, omega = aggregate(w_t, w, cohort), aggregate(w_t, omega, cohort)

        def one(old: Array, new: Array, omega: Array) -> Array:
            ratio = omega / jnp.maximum(jnp.max(omega), 1e-12)
            return new + (tau - jnp.clip(ratio, 0, 1)) * (new - old)  # zeta - 1

        return Weights(jax.tree.map(one, w_t.params, mean.params, omega), mean.stats)

    def updates(w_t, id, upload):
        w, omega = upload
        return wire.model_references(w_t, w), wire.itself(omega)

    return fedavg(task)._replace(round=(Exchange(send, local, step, updates=updates),))
