"""CA2FL (Wang, Cao, Wu, Chen, Chen, ICLR 2024, proceedings.iclr.cc): cached updates.

  send    w_t
  local   w_k <- SGD on F_k from w_{t - tau_k};  Delta_k = w_k - w_{t - tau_k}
          upload Delta_k - h_k;  h_k <- Delta_k
  server  v_t = h_t + 1/K sum_k (Delta_k - h_k),  w_{t+1} = w_t + eta_g v_t             (Alg. 2)
          h_{t+1} = h_t + 1/C sum_k (Delta_k - h_k)

The method is asynchronous. h_k is the last update of client k that the server has used, 0 before
the first one, and h_t the mean over all C clients. The paper's server keeps every h_k; here the
client keeps its own, so that the cache is divided among devices like other private state, and the
upload is as large. Running statistics move by the mean of the clients' changes.
"""

import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Positive, checked, log_uniform
from fedjax_lab.types import Exchange, Method, State, Task, Weights

RANGES = {"server_lr": log_uniform(0.1, 3.0)}


@checked("method")
def ca2fl(task: Task, *, server_lr: Positive[float] = 1.0) -> Method:
    """server_lr: eta_g."""
    risk = losses.risk(task)

    def init(key, num_clients):
        w = task.init(key)
        h = tree.zeros(w.params)
        return State((w, h), tree.repeat(h, num_clients))

    def local(w_t, client, work):
        Delta = optax.tree.sub(work.train(w_t, risk), w_t)
        return Weights(optax.tree.sub(Delta.params, client.private), Delta.stats), Delta.params

    def step(server, change, cohort):
        w_t, h_t = server
        K = jnp.maximum(jnp.sum(cohort.arrived), 1)
        mean = tree.mix(sampling.equal_shares(cohort.arrived), change)
        v_t = tree.add(h_t, mean.params)
        params = tree.add(w_t.params, v_t, server_lr)  # Alg. 2
        h = tree.add(h_t, mean.params, K / cohort.num_clients[0])
        return Weights(params, tree.add(w_t.stats, mean.stats)), h

    exchange = Exchange(
        send=lambda server, id: server[0],
        local=local,
        aggregate=step,
        updates=lambda w_t, id, change: wire.update_references(change),
    )
    method = fedavg(task)._replace(
        init=init,
        round=(exchange,),
        newcomer=lambda state: (state.server[0], ()),
        sample=sampling.equal,
    )
    return method.having(weighs_staleness=True, acknowledged=True)
