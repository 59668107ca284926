"""FedPCL (Tan et al., NeurIPS 2022, arXiv:2209.10083): prototype-wise contrastive learning.

  send    the global prototypes C_c, and those of each client, C_jc
  local   w_i <- SGD on L_g + L_p,  z = h / ||h||
          L_g = CE(z^T C / tau, y);  L_p = mean_j CE(z^T C_j / tau, y)
          C_ic = mean of z over the client's examples of class c
  server  C_c = mean of C_ic over the participants that have class c; keeps the last C_ic

h are the outputs of the model, so that its last layer is the paper's projection; PFLlib contrasts
the D features before it, and sends D instead of K numbers of each class. The models stay on the
clients. The paper's encoders are pre-trained and frozen: here other layers can be frozen by
config.adapter, and without that FedPCL trains all of them, as in PFLlib. Classes that a client does
not have are padded by C_c in its C_j. In the first round there are no prototypes, and no training.
A client predicts, among its own classes, the one with the largest z^T C_ic; in PFLlib it is one of
all classes. The losses are the paper's and PFLlib's; the authors' code contrasts a prototype with
the features of a batch instead. For K classes a client sends K (K + 1) numbers; it receives as many
for each client, and the global ones.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree
from fedjax_lab.methods import fedproto
from fedjax_lab.methods.fedavg import send
from fedjax_lab.ranges import Positive, checked, log_uniform
from fedjax_lab.types import Array, Batch, Exchange, Method, State, Task

RANGES = {"tau": log_uniform(0.02, 1.0)}


class Server(NamedTuple):
    """The server's state, which is the message too."""

    C: Array  # [K, K] global prototypes
    exists: Array  # [K] whether a class has one
    each: Array  # [C, K, K] the last prototypes of the clients
    has: Array  # [C, K] which of them exist


@checked("method")
def fedpcl(task: Task, *, tau: Positive[float] = 0.07) -> Method:
    """tau: temperature of both losses."""
    K = task.num_classes

    def vectors(w, x):
        return losses.unit(task.apply(w, x).logits)

    def init(key, num_clients):
        w = task.init(key)
        C, exists = jnp.zeros((K, K)), jnp.zeros(K)
        each, has = tree.repeat((C, exists), num_clients)
        return State(Server(C, exists, each, has), tree.repeat(w, num_clients))

    def local(message, client, work):
        padded = jnp.concatenate([message.C[None], all_padded(message)])  # [1 + C, K, K]
        share = jnp.append(1.0, jnp.full(len(message.has), 1 / len(message.has)))

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            each = contrasts(losses.unit(out.logits), padded, message.exists, tau, batch)
            return jnp.sum(share * each), out

        w = work.train(client.private, loss)
        return fedproto.prototypes(partial(vectors, w), K, client, work), w

    def aggregate(server, uploads, cohort):
        C, exists = fedproto.aggregate(None, uploads, cohort)
        each, has = tree.put((server.each, server.has), cohort.id, uploads)
        return Server(C, exists, each, has)

    def predict(message, client, x):
        C_i = all_padded(message)[client.id]
        cosines = vectors(client.private, x) @ C_i.T
        return jnp.where(client.label_count > 0, cosines, -jnp.inf)

    exchange = Exchange(send, local, aggregate, updates=fedproto.updates)
    return Method(
        init=init, round=(exchange,), predict=predict, newcomer=None, sample=sampling.by_size
    )


def all_padded(message: Server) -> Array:
    """Returns the prototypes of all clients [C, K, K], with global ones for missing classes."""
    return jnp.where(message.has[..., None] > 0, message.each, message.C)


def contrasts(z: Array, C: Array, exists: Array, tau: float, batch: Batch) -> Array:
    """Returns the loss of vectors z [B, D] for each of the prototypes C [P, K, D]: [P]."""

    def one(C):
        logits = jnp.where(exists > 0, z @ C.T / tau, -1e9)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, batch.y)
        return losses.masked_mean(each * exists[batch.y], batch.mask)

    return jax.vmap(one)(C)
