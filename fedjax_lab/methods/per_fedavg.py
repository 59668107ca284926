"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, arXiv:2002.07948): MAML across clients.

  send    w_t
  local   w~ = w - alpha grad F(w; D)
          w <- w - eta (I - alpha H(w; D)) grad F(w~; D')      H: the Hessian    (Alg. 1)
  server  w_{t+1} = sum_i n_i/n w_i

`first_order` ignores H. `hessian_free` replaces H g, where g = grad F(w~; D'), by
(grad F(w + delta g; D) - grad F(w - delta g; D)) / (2 delta). `exact` differentiates the inner
step. D' is the batch of the step. D is drawn once per round and also replaces the paper's D''; the
paper draws all three in every step. Before a client is scored, it makes one inner step on all its
data, in training mode like those of a round: a net with BatchNorm normalizes by the batch's own
statistics. The paper's mean is uniform.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Positive, checked, log_uniform
from fedjax_lab.types import Method, Task, Weights

RANGES = {"inner_lr": log_uniform(1e-3, 0.3)}


@checked("method")
def per_fedavg(
    task: Task,
    *,
    inner_lr: float = 0.001,
    hessian: Literal["first_order", "hessian_free", "exact"] = "first_order",
    delta: Positive[float] = 1e-3,
    inner_batch: Positive[int] = 32,
) -> Method:
    """inner_lr: the learning rate alpha of the inner step; 0 is FedAvg.

    hessian: how the Hessian is treated: first_order, hessian_free or exact.
    delta: the step size of the finite difference that replaces the Hessian in hessian_free.
    inner_batch: the number of examples in D.
    """
    if hessian == "exact":
        _check_twice(task)
    risk = losses.risk(task)

    def gradient(w, params, batch, key):
        return jax.grad(lambda p: risk(w._replace(params=p), batch, key)[0])(params)

    def local(w_t, client, work):
        D = work.draw(inner_batch)

        def loss(w, batch, key):
            fixed = w.params if hessian == "exact" else jax.lax.stop_gradient(w.params)
            inner = gradient(w, fixed, D, key)
            adapted = w._replace(params=tree.add(w.params, inner, -inner_lr))
            value, out = risk(adapted, batch, key)  # Alg. 1
            if hessian != "hessian_free":
                return value, out
            g = gradient(w, jax.lax.stop_gradient(adapted.params), batch, key)
            ahead, behind = (gradient(w, tree.add(fixed, g, s), D, key) for s in (delta, -delta))
            curvature = optax.tree.scale(1 / (2 * delta), optax.tree.sub(ahead, behind))  # H g
            return value - inner_lr * tree.dot(curvature, optax.tree.sub(w.params, fixed)), out

        return work.train(w_t, loss), client.private

    def tune(w_t, client, work):
        key = work.upload_key()  # a client that is scored uploads nothing
        step = work.mean(lambda batch: gradient(w_t, w_t.params, batch, key))
        return w_t._replace(params=tree.add(w_t.params, step, -inner_lr)), client.private

    return fedavg(task, local)._replace(tune=tune)


def _check_twice(task: Task) -> None:
    """Raises BadInput if the model has only first derivatives, as with the convolutions here."""
    x, key = jnp.zeros((1, *task.input_shape)), jax.random.key(0)

    def steepness(params, stats):
        def total(params):
            return jnp.sum(task.apply(Weights(params, stats), x, key).logits)

        return tree.sq_norm(jax.grad(total)(params))

    clients = jax.eval_shape(jax.vmap(task.init), jax.random.split(key, 2))
    try:
        jax.eval_shape(jax.vmap(jax.grad(steepness)), *clients)
    except (TypeError, ValueError) as error:
        raise BadInput(
            "config.method.hessian=exact needs second derivatives, which this model does not have;"
            " choose first_order or hessian_free"
        ) from error
