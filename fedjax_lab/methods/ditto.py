"""Ditto (Li, Hu, Beirami, Smith, ICML 2021, arXiv:2012.04221).

  send    w_t
  local   w_i <- SGD on F_i from w_t
          v_i <- v_i - eta (grad F_i(v_i) + lam (v_i - w_t))      (Alg. 1)
  server  w_{t+1} = sum_i n_i/n w_i

A client predicts with v_i, which starts as the first global model. Both trainings make
config.local.epochs passes; in the paper the number of steps of v_i is a separate setting. The
paper's mean is uniform, and it tunes lam on each client's validation data; here all clients have
the same lam. config.local.clip only bounds the gradient of F_i.
"""

import optax

from fedjax_lab import losses, tree
from fedjax_lab.methods._personal import with_personal_models
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Method, PyTree, Task

RANGES = {"lam": log_uniform(0.01, 2.0)}


@checked("method")
def ditto(task: Task, *, lam: float = 1.0) -> Method:
    """lam: weight of the pull of personal models to the global one; 0 trains them as in Local."""
    risk = losses.risk(task)

    def local(w_t, client, work):
        w = work.train(w_t, risk)
        drawn = drawn_to(w_t.params, lam, work.optimizer)
        return w, work.train(client.private, risk, optimizer=drawn)

    return with_personal_models(task, local)


def drawn_to(
    center: PyTree, weight: float, optimizer: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Returns the optimizer applied to the gradient plus weight (v - center)."""
    pull = optax.stateless(lambda g, v: tree.add(g, optax.tree.sub(v, center), weight))  # Alg. 1
    return optax.chain(pull, optimizer)
