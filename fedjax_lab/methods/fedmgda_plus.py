"""FedMGDA+ (Hu, Shaloudegi, Zhang, Yu, IEEE TNSE 2022, arXiv:2006.11489): a step that harms nobody.

  send    w_t
  local   w_i <- SGD on F_i from w_t;  g_i = (w_t - w_i) / ||w_t - w_i||
  server  lambda* = argmin ||sum_i lambda_i g_i||^2 over lambda >= 0 with sum 1 and
          |lambda_i - 1/m| <= eps;  w_{t+1} = w_t - server_lr sum_i lambda*_i g_i      (Alg. 1)

m clients take part. All g_i have norm 1, so that no client decides by the length of its update, and
a step is at most server_lr long; the paper lets server_lr decay (config.run.server_schedule).
lambda* is computed by accelerated projected gradient descent on the inner products of the g_i.
Running statistics are averaged uniformly.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import sampling, tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Positive, Share, checked, log_uniform
from fedjax_lab.types import Array, Method, Task, Weights

RANGES = {"eps": log_uniform(0.01, 1.0), "server_lr": log_uniform(0.1, 10.0)}

STEPS = 200  # of the descent to lambda*


@checked("method")
def fedmgda_plus(task: Task, *, eps: Share = 0.1, server_lr: Positive[float] = 1.0) -> Method:
    """eps: the largest deviation of a weight from 1/m; 0 is the mean of the g_i, 1 is MGDA.

    server_lr: the length of a step if all clients move in the same direction.
    """

    def step(w_t, w, cohort):
        moves = jax.tree.map(lambda a, b: a - b, w.params, w_t.params)  # [M, ...]
        length = jnp.sqrt(jax.vmap(tree.sq_norm)(moves))
        g = jax.vmap(optax.tree.scale)(1 / jnp.maximum(length, 1e-30), moves)
        near = jnp.clip(cohort.weight + eps, max=1), jnp.maximum(cohort.weight - eps, 0)
        high, low = (jnp.where(cohort.arrived, bound, 0) for bound in near)
        share = common_descent(tree.inner_products(g), low, high)
        params = tree.add(w_t.params, tree.mix(share, g), server_lr)  # Alg. 1
        return Weights(params, tree.mix(cohort.weight, w.stats))

    (exchange,) = fedavg(task).round
    return fedavg(task)._replace(round=(exchange._replace(aggregate=step),), sample=sampling.equal)


def common_descent(gram: Array, low: Array, high: Array) -> Array:
    """The weights lambda [M] with the least lambda^T G lambda, between bounds and with sum 1.

    gram: G [M, M], the inner products of the directions.
    """

    def step(_, carry):
        now, before, t = carry
        after = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        ahead = now + (t - 1) / after * (now - before)
        return projected(ahead - gram @ ahead / jnp.trace(gram), low, high), now, after

    first = projected(jnp.zeros_like(low), low, high)
    return jax.lax.fori_loop(0, STEPS, step, (first, first, jnp.float32(1)))[0]


def projected(v: Array, low: Array, high: Array) -> Array:
    """The nearest vector to v [M] between the bounds with sum 1: v - tau, clipped to them."""
    knots = jnp.sort(jnp.concatenate([v - low, v - high]), descending=True)
    sums = jnp.sum(jnp.clip(v - knots[:, None], low, high), 1)  # ascending and linear in between
    return jnp.clip(v - jnp.interp(1.0, sums, knots), low, high)
