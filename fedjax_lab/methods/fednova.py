"""FedNova (Wang et al., NeurIPS 2020, arXiv:2007.07481): normalized averaging of updates.

  send    w_t
  local   w_i <- SGD on F_i from w_t, tau_i steps;  d_i = (w_t - w_i) / a_i
  server  w_{t+1} = w_t - tau_eff sum_i p_i d_i,  tau_eff = sum_i p_i a_i

p_i = n_i/n over the sampled clients. a_i is the distance that the optimizer moves along a constant
gradient in tau_i steps: tau_i itself for plain SGD, and with momentum rho it is
(tau_i - rho (1 - rho^tau_i) / (1 - rho)) / (1 - rho). Only the ratios of the a_i matter, so the
learning rate is not divided out.
"""

import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, tree, wire
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.ranges import checked
from fedjax_lab.types import Exchange, Method, Task, Weights


@checked("method")
def fednova(task: Task) -> Method:
    """FedAvg for clients with different numbers of steps; with equal numbers it is FedAvg."""
    risk = losses.risk(task)

    def local(w_t, client, work):
        w = work.train(w_t, risk)
        return (w, optim.reach(work.optimizer, work.steps)), client.private

    def aggregate(w_t, uploads, cohort):
        (w, a), p = uploads, cohort.weight
        tau_eff = jnp.sum(p * a)
        a = jnp.where(cohort.arrived, a, 1)  # p is 0 for a lost upload
        mean = tree.mix(p * tau_eff / a, optax.tree.sub(w.params, w_t.params))
        return Weights(tree.add(w_t.params, mean), tree.mix(p, w.stats))

    def updates(w_t, id, upload):
        w, a = upload
        return wire.model_references(w_t, w), wire.kept(a)

    exchange = Exchange(send, local, aggregate, updates=updates)
    return fedavg(task)._replace(round=(exchange,))
