"""FedBuff (Nguyen et al., AISTATS 2022, arXiv:2106.06639).

  send    w_t
  local   w_k <- SGD on F_k from w_{t - tau_k};  Delta_k = w_k - w_{t - tau_k}
  server  w_{t+1} = w_t + eta_g / K sum_k s(tau_k) Delta_k,  s(tau) = (1 + tau)^-a      (Alg. 1)

The method is asynchronous: K is config.run.cohort, and config.clock.concurrency clients train at a
time; in synchronous rounds tau = 0. `normalize` divides the weights s: by their sum instead of K
(as in FedScale), or by s(1) (as in FLSim). Running statistics move like parameters, with eta_g = 1.
"""

from typing import Literal

import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods import _staleness
from fedjax_lab.methods._staleness import Law
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Positive, checked, log_uniform, uniform
from fedjax_lab.types import Exchange, Method, Task, Weights

RANGES = {"server_lr": log_uniform(0.1, 3.0), "a": uniform(0.0, 1.0)}


@checked("method")
def fedbuff(
    task: Task,
    *,
    server_lr: Positive[float] = 1.0,
    staleness: Law = "polynomial",
    a: float = 0.5,
    slope: float = 10.0,
    b: float = 4.0,
    normalize: Literal["none", "sum", "mean_staleness"] = "none",
) -> Method:
    """server_lr: eta_g. staleness: the law of s. a: the exponent of the polynomial.

    slope, b: the slope of the hinge, FedAsync's a, and where it begins.
    normalize: what the weights s(tau_k) are divided by.
    """
    risk = losses.risk(task)

    def law(tau):
        return _staleness.weight(staleness, tau, a, slope, b)

    def local(w_t, client, work):
        return optax.tree.sub(work.train(w_t, risk), w_t), client.private

    def step(w_t, Delta, cohort):
        s = law(cohort.staleness) * cohort.arrived
        K = jnp.maximum(jnp.sum(cohort.arrived), 1)
        if normalize == "sum":
            K = jnp.maximum(jnp.sum(s), 1e-30)
        if normalize == "mean_staleness":
            K = K * law(jnp.ones(()))
        params = tree.add(w_t.params, tree.mix(server_lr * s / K, Delta.params))  # Alg. 1
        return Weights(params, tree.add(w_t.stats, tree.mix(s / K, Delta.stats)))

    exchange = Exchange(
        send=lambda w_t, id: w_t,
        local=local,
        aggregate=step,
        updates=lambda w_t, id, Delta: wire.update_references(Delta),
    )
    method = fedavg(task)._replace(round=(exchange,), sample=sampling.equal)
    return method.having(weighs_staleness=True)
