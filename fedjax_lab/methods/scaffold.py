"""SCAFFOLD (Karimireddy et al., ICML 2020, arXiv:1910.06378).

  send    w_t, c
  local   y <- y - eta (grad F_i(y) - c_i + c), K steps from w_t                (eq. 3)
          c_i+ = c_i - c + (w_t - y) / (K eta)                                  (eq. 4)
  server  w_{t+1} = w_t + eta_g sum_i n_i/n (y_i - w_t)
          c <- c + |S|/C mean_{i in S} (c_i+ - c_i)                             (eq. 5)

Option II; every control variate starts at zero, so c stays the mean of all c_i while no upload is
lost. The models' mean is by size, as every other method's; the paper's is uniform. K eta is the
reach of the clients' optimizer: with momentum it goes further than K steps of eta. With Adam c_i is
no gradient: use SGD. Weight decay counts as drift, as it does in NIID-Bench.
"""

import jax
import optax

from fedjax_lab import losses, optim, tree, wire
from fedjax_lab.methods.fedavg import aggregate, fedavg
from fedjax_lab.ranges import log_uniform
from fedjax_lab.types import Exchange, Method, State, Task, Weights

RANGES = {"server_lr": log_uniform(0.1, 1.0)}


def scaffold(task: Task, *, server_lr: float = 1.0) -> Method:
    """server_lr: eta_g."""
    risk = losses.risk(task)

    def init(key, num_clients):
        w = task.init(key)
        zero = tree.zeros(w.params)
        return State((w, zero), tree.repeat(zero, num_clients))

    def send(server, id):
        return server

    def local(message, client, work):
        (w_t, c), c_i = message, client.private
        corrected = optax.stateless(lambda g, _: tree.add(tree.sub(g, c_i), c))  # eq. 3
        y = work.train(w_t, risk, optimizer=optax.chain(corrected, work.optimizer))
        drift = tree.scale(1 / optim.reach(work.optimizer, work.steps), _drift(w_t, y))
        c_next = tree.add(tree.sub(c_i, c), drift)  # eq. 4
        return (y, tree.sub(c_next, c_i)), c_next

    def step(server, uploads, cohort):
        (w_t, c), (y, change) = server, uploads
        mean = aggregate(w_t, y, cohort)
        params = tree.add(mean.params, _drift(w_t, mean), 1 - server_lr)
        c = jax.tree.map(lambda a, d: a + d.sum(0) / cohort.num_clients[0], c, change)  # eq. 5
        return Weights(params, mean.stats), c

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, step, updates=updates),),
        predict=lambda message, client, x: task.apply(message[0], x).logits,
        newcomer=lambda state: (state.server, ()),
    )


def updates(message, id, upload):
    """The model's are from w_t; what is sent of the control variate is a change itself."""
    (w_t, _), (y, change) = message, upload
    return wire.of_model(w_t, y), wire.itself(change)


def _drift(w_t, y):
    return tree.sub(w_t.params, y.params)
