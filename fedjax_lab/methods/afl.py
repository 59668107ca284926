"""AFL (Mohri, Sivek, Suresh, ICML 2019, arXiv:1902.00146): agnostic federated learning.

  send    w_t
  local   F_i = F_i(w_t);  w_i <- SGD on F_i from w_t
  server  w_{t+1} = sum_i lambda_i w_i / sum_i lambda_i
          lambda <- projection of lambda + lambda_lr F onto the simplex

It minimizes the risk of the worst mixture of the clients. lambda has an entry for each client and
starts at 1/C; F_i is 0 for clients that do not take part in the round. In the paper the step of w
is one gradient step; here it is local training, as in FedAvg. If all lambda_i of a round are 0, the
mean is uniform. F_i is a mean over all examples of the client in evaluation mode. A client sends
one number in addition to the model.
"""

import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Exchange, Method, State, Task

RANGES = {"lambda_lr": log_uniform(1e-3, 1.0)}


@checked("method")
def afl(task: Task, *, lambda_lr: float = 0.1) -> Method:
    """lambda_lr: learning rate of the clients' weights; 0 is FedAvg with equal shares."""
    risk = losses.risk(task)

    def init(key, num_clients):
        return State((task.init(key), jnp.full(num_clients, 1 / num_clients)), ())

    def local(w_t, client, work):
        F = work.mean(lambda batch: risk(w_t, batch, None)[0])
        return (work.train(w_t, risk), F), client.private

    def step(server, uploads, cohort):
        (_, weights), (w, F) = server, uploads
        chosen = jnp.where(cohort.arrived, weights[cohort.id], 0)
        total = jnp.sum(chosen)
        share = jnp.where(total > 0, chosen / jnp.maximum(total, 1e-30), cohort.weight)
        raised = weights.at[cohort.id].add(lambda_lr * F)
        return tree.mix(share, w), optax.projections.projection_simplex(raised)

    exchange = Exchange(lambda server, id: server[0], local, step, updates=updates)
    return fedavg(task)._replace(
        init=init,
        round=(exchange,),
        newcomer=lambda state: (state.server[0], ()),
        sample=sampling.equal,
    )


def updates(w_t, id, upload):
    """Marks the model as an update of w_t, and the loss as none."""
    w, F = upload
    return wire.model_references(w_t, w), wire.kept(F)
