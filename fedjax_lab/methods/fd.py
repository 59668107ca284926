"""FD (Jeong et al., 2018, arXiv:1811.11479): federated distillation of mean outputs by class.

  send    G_i,c = mean of F_j,c over the other clients j that have class c
  local   w_i <- SGD on CE(p, y) + gamma CE(p, G_i,y) from w_i,  p = the class probabilities
          F_i,c = mean of p over the client's examples of class c
  server  keeps every client's last F_i

Models never leave the clients. F_i is computed after training, in evaluation mode; the paper
collects it during the steps. All devices take part in the paper; here the last F_j of the clients
that do not take part is used. The paper does not give gamma. It also augments the data by a
generator (FAug), which is not implemented here. A class that no other client has had yet has no
distillation. K (K + 1) numbers are sent each way, for K classes.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree
from fedjax_lab.methods.fedproto import prototypes, updates
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree, State, Task

RANGES = {"gamma": log_uniform(1e-2, 1.0)}


@checked("method")
def fd(task: Task, *, gamma: float = 0.1) -> Method:
    """gamma: weight of the distillation; with 0 it is Local, but with sampled clients."""
    K = task.num_classes

    def init(key, num_clients):
        nothing = jnp.zeros((num_clients, K, K)), jnp.zeros((num_clients, K))
        return State(nothing, tree.repeat(task.init(key), num_clients))

    def local(message, client, work):
        G, exists = message  # [K, K], [K]

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            each = -jnp.sum(G[batch.y] * jax.nn.log_softmax(out.logits), -1) * exists[batch.y]
            distilled = losses.masked_mean(each, batch.mask)
            return losses.cross_entropy(out.logits, batch) + gamma * distilled, out

        w = work.train(client.private, loss)
        F_i = prototypes(lambda x: jax.nn.softmax(task.apply(w, x).logits), K, client, work)
        return F_i, w

    def predict(message, client, x):
        return task.apply(client.private, x).logits

    exchange = Exchange(teach, local, aggregate, updates=updates, alike=False)
    return Method(
        init=init, round=(exchange,), predict=predict, newcomer=None, sample=sampling.by_size
    )


def teach(server: tuple[Array, Array], id: Array) -> tuple[Array, Array]:
    """Returns G_i [K, K], and which classes it has, [K]."""
    F, has = server  # [C, K, K], [C, K]
    has = has * (jnp.arange(len(has)) != id)[:, None]
    count = jnp.sum(has, 0)  # [K]
    G = jnp.sum(F * has[..., None], 0) / jnp.maximum(count, 1)[:, None]
    return G, (count > 0).astype(jnp.float32)


def aggregate(server: PyTree, uploads: PyTree, cohort: Client) -> PyTree:
    """Stores the last F_i of each client."""
    return tree.put(server, cohort.id, uploads)
