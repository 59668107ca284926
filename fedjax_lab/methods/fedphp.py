"""FedPHP (Li, Zhan, Shao, Li, Song, ECML PKDD 2021, doi:10.1007/978-3-030-86486-6_36).

  send    w_t
  local   w_i <- SGD on (1 - lam) F_i(w) + lam R(w, p_i) from w_t
          p_i <- mu_i p_i + (1 - mu_i) w_i          the inherited private model
  server  w_{t+1} = sum_i n_i/n w_i

R transfers knowledge from p_i: KD is the cross-entropy of the logits of w with the softmax of the
logits of p_i divided by a temperature of 4; MMD is the squared maximum mean discrepancy of the
features. mu_i grows by mu / ramp each time that the client takes part, from 0 to mu; in the
authors' code `ramp` is the expected number of rounds that a client takes part in. A client predicts
with p_i, which starts as the first global model; as in the code, R is used from the client's first
round on. p_i runs in evaluation mode.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, tree
from fedjax_lab.methods._personal import with_personal_models
from fedjax_lab.ranges import BelowOne, Positive, checked, choice, log_uniform
from fedjax_lab.types import Array, Method, Task

RANGES = {"lam": log_uniform(0.01, 0.5), "transfer": choice("kd", "mmd")}
TEMPERATURE = 4.0  # of the inherited model's logits


@checked("method")
def fedphp(
    task: Task,
    *,
    lam: BelowOne = 0.1,
    mu: BelowOne = 0.9,
    ramp: Positive[int] = 10,
    transfer: Literal["kd", "mmd"] = "kd",
) -> Method:
    """lam: weight of the term R, below 1; transfer: the term R, kd or mmd.

    mu: final decay of the moving average p_i; with 0 a client predicts with its last w_i.
    ramp: the number of rounds of a client in which the decay grows from 0 to mu.
    """
    if transfer == "kd":
        losses.check_classes(task)

    def local(w_t, client, work):
        p, rounds = client.private

        def references(batch):
            out = task.apply(p, batch.x)
            return jax.nn.softmax(out.logits / TEMPERATURE), losses.pooled(out.features)

        def loss(w, batch, key):
            out, (teacher, features) = task.apply(w, batch.x, key, batch.mask), batch.references
            if transfer == "kd":
                distance = -jnp.sum(teacher * jax.nn.log_softmax(out.logits), -1)
                R = losses.masked_mean(distance, batch.mask)
            else:
                R = mean_discrepancy(losses.pooled(out.features), features, batch.mask)
            return (1 - lam) * task.loss(out.logits, batch) + lam * R, out

        w = work.train(w_t, loss, references=references)
        mu_i = mu * jnp.minimum(rounds / ramp, 1)
        return w, (tree.add(optax.tree.scale(mu_i, p), w, 1 - mu_i), rounds + 1)

    def start(w):
        return w, jnp.float32(0)

    return with_personal_models(task, local, start, model=lambda w, private: private[0])


def mean_discrepancy(a: Array, b: Array, mask: Array) -> Array:
    """Returns the squared maximum mean discrepancy of the rows of a and b, where mask is 1.

    The kernel is the sum of five Gaussians with widths that double from one to the next; the middle
    width is the mean squared distance of two rows, which gets no gradient.

    a, b: [B, D] features.
    mask: [B].
    """
    n = jnp.maximum(jnp.sum(mask), 1)
    rows, signs = jnp.concatenate([a, b]), jnp.concatenate([mask, -mask]) / n
    squared = jnp.sum((rows[:, None] - rows) ** 2, -1)
    pairs = jnp.abs(signs[:, None] * signs) * n**2  # 1 where both rows are real
    width = jax.lax.stop_gradient(jnp.sum(squared * pairs) / (2 * n * (2 * n - 1))) + 1e-12
    kernel = sum(jnp.exp(-squared / (width * 2.0**k)) for k in range(-2, 3))
    return signs @ kernel @ signs
