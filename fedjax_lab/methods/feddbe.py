"""FedDBE: FedAvg with DBE (Zhang et al., NeurIPS 2023, arXiv:2311.14975), domain bias elimination.

  send    w_t, and from round 2 on h, the mean features of all clients
  local   (w_i, p_i) <- SGD on CE(phi(f(x) + p_i), y) + kappa/2 mean_d (mean_b f(x) - h)^2
          h_i = mean of f over the client's examples
  server  as FedAvg; after round 1 h = sum_i n_i/n h_i, which then stays fixed

f is the body of w, which gives the features, and phi is its head; p_i, a vector that starts at
zero, stays on the client. Round 1 is a round of FedAvg; in the paper it is an initialization in
which all clients take part and after which their models are discarded. mean_b is the mean over the
batch, which is the paper's moving average with mu = 1; h_i is computed over all examples after
training, in evaluation mode. A new client has p = 0. One model and D numbers are sent each way, for
D features.
"""

import jax.numpy as jnp

from fedjax_lab import losses, tree, wire
from fedjax_lab.methods.fedavg import aggregate, fedavg, send
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Array, Exchange, Method, Output, State, Task, Weights

RANGES = {"kappa": log_uniform(0.1, 100.0)}


@checked("method")
def feddbe(task: Task, *, kappa: float = 10.0) -> Method:
    """kappa: weight of the pull of a client's mean features toward the global mean features."""

    def init(key, num_clients):
        w = task.init(key)
        p = jnp.zeros(w.params[task.head]["kernel"].shape[0])
        return State((w, p, jnp.float32(0)), tree.repeat(p, num_clients))

    def local(message, client, work):
        w_t, h, started = message

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            value = task.loss(shifted(w, started * w.params["p"], out), batch)
            gap = mean_features(out, batch.mask) - h
            return value + started * kappa / 2 * jnp.mean(gap**2), out

        both = w_t._replace(params={**w_t.params, "p": client.private})
        w = work.train(both, loss)
        shared = {name: layer for name, layer in w.params.items() if name != "p"}

        def batch_features(batch):
            return mean_features(task.apply(w, batch.x), batch.mask)

        return (w._replace(params=shared), work.mean(batch_features)), w.params["p"]

    def step(server, uploads, cohort):
        (w_t, h, started), (w, h_i) = server, uploads
        h = jnp.where(started > 0, h, tree.mix(cohort.weight, h_i))
        return aggregate(w_t, w, cohort), h, jnp.ones_like(started)

    def predict(message, client, x):
        w, *_ = message
        return shifted(w, client.private, task.apply(w, x))

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, step, updates=updates),),
        predict=predict,
        newcomer=lambda state: (state.server, jnp.zeros_like(state.server[1])),
    )


def updates(message, id, upload):
    """Marks the model as an update of w_t, and the mean features as an update themselves."""
    (w_t, *_), (w, h_i) = message, upload
    return wire.model_references(w_t, w), wire.itself(h_i)


def mean_features(out: Output, mask: Array) -> Array:
    """Returns the mean features [D] of the examples where mask is 1."""
    return losses.masked_mean(losses.pooled(out.features), mask)


def shifted(w: Weights, p: Array, out: Output) -> Array:
    """Returns phi(f(x) + p) from the logits phi(f(x)), since the head is linear."""
    return out.logits + jnp.dot(p, w.params["head"]["kernel"], precision="highest")
