"""FedKD (Wu et al., Nature Communications 2022, arXiv:2108.13323): mutual distillation.

  send    w_t, the mentee
  local   (w, v_i, W_i) <- SGD on L + (KL(p_v || p_w) + KL(p_w || p_v) + 2 L_h) / L
          L = F_i(v_i) + F_i(w),  L_h = mean |h_v - W_i h_w|^2
          upload w_i = w_t + svd(w - w_t)
  server  w_{t+1} = w_t + svd(sum_i n_i/n w_i - w_t)

The mentor v_i stays on the client, which predicts with it; it has the architecture of the mentee,
unless config.model.kinds gives the client another one. h are the features, and W_i, a square matrix
that stays on the client, starts as the identity. As in the authors' code the losses of both models
are added, so that each model gets the gradient of all terms; divergences are means over examples
(PFLlib: over classes too). svd keeps the first singular values of each kernel, as a matrix with a
row for each input, whose squares have a share of at least `energy`; the authors' code and PFLlib
send nothing of a kernel of which all would be kept. The paper raises the energy from 0.95 to 0.98
during a run. Bytes are counted without svd, because ranks depend on the data. The paper's mean is
uniform.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, tree
from fedjax_lab.methods._personal import train_together, with_personal_models
from fedjax_lab.methods.fedavg import send
from fedjax_lab.ranges import Share, checked, uniform
from fedjax_lab.types import Array, Exchange, Method, Task, Weights

RANGES = {"energy": uniform(0.8, 1.0)}


@checked("method")
def fedkd(task: Task, *, energy: Share = 0.95) -> Method:
    """energy: share of the squared singular values that is sent; 1 sends all."""
    losses.check_classes(task)

    def start(w):
        W = jnp.eye(w.params[task.head]["kernel"].shape[0])
        return w._replace(params={**w.params, "hidden": W})

    def local(w_t, client, work):
        def loss(w, v, batch, key):
            w_out = task.shared.apply(w, batch.x, key, batch.mask)
            v_out = task.apply(v, batch.x, key, batch.mask)
            outs = w_out, v_out
            labels = sum(losses.cross_entropy(out.logits, batch) for out in outs)
            log_w, log_v = (jax.nn.log_softmax(out.logits) for out in outs)
            divergence = optax.losses.kl_divergence_with_log_targets
            apart = divergence(log_w, log_v) + divergence(log_v, log_w)
            h_w, h_v = (losses.pooled(out.features) for out in outs)
            hidden = jnp.mean((h_v - h_w @ v.params["hidden"]) ** 2, -1)
            mutual = losses.masked_mean(apart + 2 * hidden, batch.mask)
            return labels + mutual / jnp.maximum(labels, 1e-8), outs

        w, v = train_together(work, w_t, client.private, loss)
        return moved(w_t, w, energy), v

    def step(w_t, w, cohort):
        return moved(w_t, tree.mix(cohort.weight, w), energy)

    method = with_personal_models(task, local, start, shared=task.shared)
    return method._replace(round=(Exchange(send, local, step),))


def moved(start: Weights, w: Weights, energy: float) -> Weights:
    """Returns start + svd(w - start), with the running statistics of w."""
    change = jax.tree.map(lambda a: truncated(a, energy), optax.tree.sub(w.params, start.params))
    return w._replace(params=tree.add(start.params, change))


def truncated(a: Array, energy: float) -> Array:
    """Returns a kernel with only its first singular values; biases are returned as they are."""
    if a.ndim < 2:
        return a
    u, s, v = jnp.linalg.svd(a.reshape(-1, a.shape[-1]), full_matrices=False)
    before = jnp.cumsum(s**2) - s**2
    kept = jnp.where(before < energy * jnp.sum(s**2), s, 0)
    return jnp.matmul(u * kept, v, precision="highest").reshape(a.shape)
