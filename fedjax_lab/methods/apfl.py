"""APFL (Deng, Kamani, Mahdavi, 2020, arXiv:2003.13461): a mixture of a local and a global model.

  send    w_t
  local   w_i <- w_i - eta grad F_i(w_i)                                      (Alg. 1)
          v_i <- v_i - eta grad_v F_i(alpha_i v_i + (1 - alpha_i) w_i)         on the same batch
  server  w_{t+1} = sum_i n_i/n w_i

A client predicts with alpha_i v_i + (1 - alpha_i) w_t. With `adaptive`, alpha_i makes a step
alpha_i <- alpha_i - eta d/d alpha F_i at the start of a round, on all of the client's data, and is
clipped to [0, 1]; eta is the step size of the first step of config.local. PFLlib adds a decay of
alpha_i that is not in the paper. Running statistics are mixed like parameters; v_i keeps those of
the mixture. Both models are trained together, so config.local.clip bounds their joint gradient.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, tree
from fedjax_lab.methods._personal import train_together, with_personal_models
from fedjax_lab.ranges import Share, checked, uniform
from fedjax_lab.types import Method, Task

RANGES = {"alpha": uniform(0.1, 0.9)}


@checked("method")
def apfl(task: Task, *, alpha: Share = 0.5, adaptive: bool = True) -> Method:
    """alpha: the initial weight of the local model; if not adaptive, 0 is FedAvg and 1 is Local.

    adaptive: whether each client adapts its alpha.
    """
    risk = losses.risk(task)

    def adapted(w_t, private, work):
        v, alpha_i = private
        if not adaptive:
            return alpha_i
        slope = jax.grad(lambda a, batch: risk(mixed(w_t, (v, a)), batch, None)[0])
        eta = optim.reach(work.optimizer, 1)
        return jnp.clip(alpha_i - eta * work.mean(lambda b: slope(alpha_i, b)), 0, 1)

    def local(w_t, client, work):
        alpha_i, (v, _) = adapted(w_t, client.private, work), client.private

        def loss(w, v, batch, key):
            value, out = risk(w, batch, key)  # Alg. 1
            fixed = jax.lax.stop_gradient(w.params)
            mixture = v._replace(params=mixed(fixed, (v.params, alpha_i)))
            of_mixture, mixture_out = risk(mixture, batch, key)
            return value + of_mixture, (out, mixture_out)

        w, v = train_together(work, w_t, v, loss)
        return w, (v, alpha_i)

    return with_personal_models(task, local, start=lambda w: (w, jnp.float32(alpha)), model=mixed)


def mixed(w, private):
    """Returns alpha_i v_i + (1 - alpha_i) w, for whole weights or for parameters alone."""
    v, alpha_i = private
    return tree.add(optax.tree.scale(alpha_i, v), w, 1 - alpha_i)
