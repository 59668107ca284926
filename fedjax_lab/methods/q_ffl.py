"""q-FFL (Li, Sanjabi, Beirami, Smith, ICLR 2020, arXiv:1905.10497): fairer shares of high losses.

  send    w_t
  local   F_i = F_i(w_t);  w_i <- SGD on F_i from w_t;  Delta_i = L (w_t - w_i),  L = 1/eta
          h_i = q F_i^{q-1} ||Delta_i||^2 + L F_i^q
  server  w_{t+1} = w_t - sum_i F_i^q Delta_i / sum_i h_i                          (Alg. 2)

This is q-FedAvg. eta is the length of the first step of config.local along a gradient of norm 1;
the factor L cancels except in the first term of h_i, which shortens the step. With many local steps
||Delta_i|| is much larger than a gradient, so that a large q leaves only a short step; the paper's
q are from 0.001 to 5. F_i is a mean over all examples of the client in evaluation mode, at least
1e-10. The paper draws clients in proportion to n_i; here each is drawn with the same probability.
Running statistics are averaged uniformly. A client sends two numbers in addition to the model.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, sampling, tree, wire
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Exchange, Method, Task, Weights

RANGES = {"q": log_uniform(1e-3, 5.0)}


@checked("method")
def q_ffl(task: Task, *, q: float = 0.01) -> Method:
    """q: fairness; 0 is FedAvg with equal shares, and a large q minimizes the highest loss."""
    risk = losses.risk(task)

    def local(w_t, client, work):
        F = jnp.maximum(work.mean(lambda batch: risk(w_t, batch, None)[0]), 1e-10)
        w = work.train(w_t, risk)
        moved = tree.sq_norm(optax.tree.sub(w_t.params, w.params))
        h = q * F ** (q - 1) * moved / optim.reach(work.optimizer, 1) + F**q  # h_i / L
        return (w, F**q, h), client.private

    def step(w_t, uploads, cohort):
        w, power, h = uploads
        share = power / jnp.maximum(jnp.sum(h), 1e-30)
        moves = jax.tree.map(lambda a, b: a - b, w.params, w_t.params)  # [M, ...]
        params = tree.add(w_t.params, tree.mix(share, moves))  # Alg. 2
        return Weights(params, tree.mix(cohort.weight, w.stats))

    exchange = Exchange(send, local, step, updates=updates)
    return fedavg(task)._replace(round=(exchange,), sample=sampling.equal)


def updates(w_t, id, upload):
    """Marks the model as an update of w_t, and the numbers as none."""
    w, *numbers = upload
    return wire.model_references(w_t, w), *wire.kept(numbers)
