"""FedGC (Niu and Deng, AAAI 2022, arXiv:2112.07246): gradient correction of class embeddings.

  send    theta, the body;  W_i, the embeddings of the client's classes
  local   (theta_i, W_i) <- SGD on CE(W_i^T h, y) over the client's classes,  h = theta_i(x)
  server  theta <- sum_i n_i/n theta_i;  W <- W - server_lr grad Reg(W)
          Reg = sum_i sum_c -log e^{s_ic^T w_ic} / (e^{s_ic^T w_ic} + sum_jk e^{s_ic^T w_jk})

s is W without a gradient, and the sum over jk is over the embeddings of other classes on other
clients. In the paper every class, a person, is on one client, so that these are all embeddings of
other clients. PFLlib compares the mean embedding of a class with the embeddings on the clients
without that class. The server makes one step a round; W_i keeps the last value of a client. The
embeddings are the columns of the head's kernel; as in the paper there is no bias. A client predicts
one of its own classes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods import _heads
from fedjax_lab.methods._sizes import check_pairs
from fedjax_lab.methods.fedavg import aggregate
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Array, Client, Exchange, Method, State, Task, Weights

RANGES = {"server_lr": log_uniform(1e-4, 1.0)}


class Server(NamedTuple):
    """The server's state."""

    theta: Weights
    W: Array  # [C, K, D]
    has: Array  # [C, K] whether a client has sent the embedding


@checked("method")
def fedgc(task: Task, *, server_lr: float = 0.01) -> Method:
    """server_lr: learning rate of the server; 0 leaves the embeddings to the clients."""
    in_head, K = tree.within((task.head,)), task.num_classes

    def init(key, num_clients):
        check_pairs("fedgc", num_clients * K)
        w = task.init(key)
        W = tree.repeat(w.params["head"]["kernel"].T, num_clients)
        return State(Server(tree.split(in_head, w)[1], W, jnp.zeros((num_clients, K))), ())

    def local(message, client, work):
        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            over_own = logits(out.features, w.params["embeddings"], client)
            return losses.cross_entropy(over_own, batch), out

        w = work.train(whole(task, message), loss)
        params = {name: a for name, a in w.params.items() if name != "embeddings"}
        theta = tree.split(in_head, w._replace(params=params))[1]
        return (theta, w.params["embeddings"], client.label_count > 0), ()

    def step(server, uploads, cohort):
        theta, W, has = uploads
        W, has = tree.put((server.W, server.has), cohort.id, (W, has.astype(jnp.float32)))
        W = W - server_lr * jax.grad(regularizer)(W, W, has)
        return Server(aggregate(None, theta, cohort), W, has)

    def predict(message, client, x):
        h = task.apply(whole(task, message), x).features
        return logits(h, message[1], client)

    exchange = Exchange(send, local, step, updates=updates, alike=False)
    return Method(
        init=init, round=(exchange,), predict=predict, newcomer=None, sample=sampling.by_size
    )


def send(server: Server, id: Array) -> tuple[Weights, Array]:
    """Sends theta and W_i."""
    return server.theta, server.W[id]


def whole(task: Task, message: tuple[Weights, Array]) -> Weights:
    """Returns theta with the embeddings W_i, and a head of zeros that is not used."""
    theta, W_i = message
    w = _heads.whole(task, theta)
    return w._replace(params={**w.params, "embeddings": W_i})


def logits(h: Array, W_i: Array, client: Client) -> Array:
    """Returns the logits [B, K] of features h [B, D], in which only the client's classes count."""
    return jnp.where(client.label_count > 0, h @ W_i.T, -1e9)


def updates(message, id, upload):
    """Marks theta and W_i as updates of the message, and the flags of classes as none."""
    theta, _, has = upload
    return wire.model_references(message[0], theta), message[1], wire.kept(has)


def regularizer(W: Array, s: Array, has: Array) -> Array:
    """Returns Reg of embeddings W [C, K, D], with s = W that gets no gradient; has: [C, K]."""
    C, K, D = W.shape
    products = jnp.matmul(s.reshape(C * K, D), W.reshape(C * K, D).T, precision="highest")
    client, label = jnp.divmod(jnp.arange(C * K), K)
    others = (client[:, None] != client) & (label[:, None] != label) & (has.ravel() > 0)
    compared = jnp.where(others | jnp.eye(C * K, dtype=bool), products, -jnp.inf)
    each = jax.nn.logsumexp(compared, -1) - jnp.diag(products)
    return jnp.sum(each * has.ravel())
