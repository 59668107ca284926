"""FedAsync (Xie, Koyejo, Gupta 2019, arXiv:1903.03934).

  send    w_t
  local   w_k <- SGD on F_k(w) + rho/2 ||w - w_{t - tau_k}||^2 from w_{t - tau_k}
  server  w_{t+1} = (1 - alpha_t) w_t + alpha_t w_k,  alpha_t = alpha s(tau_k)          (Alg. 1)

The method is asynchronous, and the paper's server uses each upload alone: config.run.cohort=1. With
K uploads it moves by their mean, w_{t+1} = w_t + 1/K sum_k alpha s(tau_k) (w_k - w_t). In
synchronous rounds tau = 0. Running statistics are mixed like parameters.
"""

import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree
from fedjax_lab.methods import _staleness
from fedjax_lab.methods._staleness import Law
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.ranges import Share, checked, log_uniform, uniform
from fedjax_lab.types import Exchange, Method, Task

RANGES = {"alpha": uniform(0.1, 1.0), "rho": log_uniform(1e-4, 0.1), "a": uniform(0.0, 1.0)}


@checked("method")
def fedasync(
    task: Task,
    *,
    alpha: Share = 0.6,
    rho: float = 0.005,
    staleness: Law = "polynomial",
    a: float = 0.5,
    slope: float = 10.0,
    b: float = 4.0,
) -> Method:
    """alpha: weight of a fresh upload, 0..1. rho: weight of the proximal term.

    staleness: the law of s. a: the exponent of the polynomial.
    slope, b: the slope of the hinge, the paper's a, and where it begins.
    """
    risk = losses.risk(task)

    def local(w_t, client, work):
        def near(w, batch, key):
            value, out = risk(w, batch, key)
            return value + rho / 2 * tree.sq_norm(optax.tree.sub(w.params, w_t.params)), out

        return work.train(w_t, near), client.private

    def mix(w_t, w, cohort):
        s = _staleness.weight(staleness, cohort.staleness, a, slope, b)
        alpha_t = alpha * s * sampling.equal_shares(cohort.arrived)
        left = optax.tree.scale(1 - jnp.sum(alpha_t), w_t)
        return tree.add(left, tree.mix(alpha_t, w))  # Alg. 1

    exchange = Exchange(send, local, mix)
    method = fedavg(task)._replace(round=(exchange,), sample=sampling.equal)
    return method.having(weighs_staleness=True)
