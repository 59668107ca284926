"""PeFLL (Scott, Zakerinia, Lampert, ICLR 2024, arXiv:2306.05515): learning to learn models.

send    the embedding network psi
local   v_i = mean of phi(x, y; psi) over the client's examples
send    w_i = h(v_i; theta)
local   w~_i <- SGD on F_i from w_i;  delta_i = w_i - w~_i
server  (g, d_i) = (d h(v_i; theta) / d(theta, v_i))^T delta_i / M;  theta <- Adam(theta, sum_i g)
send    psi and d_i
local   u_i = (d v_i / d psi)^T d_i
server  psi <- Adam(psi, sum_i u_i)

A client's model is h(v_i; theta), where v_i comes from its own data and the current psi. It is
scored without further training, and so are new clients, which need no training either. h is hFedF's
hypernetwork; it has half of the width of the authors' code, and its last biases are the first
weights of a model, so that all clients begin near it. In the code phi is a convolutional network
that sees the label as channels; here it is the body of the task's model, whose running statistics
stay the first ones, with a dense layer on its features and the label. The code takes one batch
instead of all examples, shifts and scales all v_i by two numbers from the first client, clips
gradients to norm 50 and uses ReLU; here nothing is clipped, and h has a leaky ReLU. The paper sends
d_i alone; here clients keep nothing between the exchanges, so that they get psi again. The running
statistics of the models are averaged by size.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, sampling, streams, tree, wire
from fedjax_lab.methods import _heads
from fedjax_lab.methods.fedavg import send as everything
from fedjax_lab.methods.hfedf import ACTIVATION, WIDTH, pseudo_gradient
from fedjax_lab.methods.hfedf import updates as model_references
from fedjax_lab.models import hypernetwork
from fedjax_lab.models.layers import affine, first_affine
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Array, Batch, Client, Exchange, Method, PyTree, State, Task, Weights

RANGES = {"server_lr": log_uniform(1e-4, 3e-2)}


class Server(NamedTuple):
    """The server's state."""

    theta: hypernetwork.Hypernetwork
    psi: PyTree
    moments: tuple  # of Adam on theta and on psi
    v: Array  # [C, e] the last embeddings
    d: Array  # [C, e] their gradients
    stats: PyTree  # running statistics


@checked("method")
def pefll(task: Task, *, server_lr: float = 3e-3, embedding_dim: int = 0) -> Method:
    """server_lr: learning rate of Adam on both networks; the code's is 2e-4, for 5,000 rounds.

    embedding_dim: e, the size of an embedding; 0: 1 + C / 4.
    """
    adam, phi = optim.adam(server_lr), partial(embedding, task, task.num_classes)

    def embed(psi, client, work):
        return work.mean(partial(phi, psi)), ()

    def pull_back(message, client, work):
        psi, d_i = message

        def batch_gradient(batch):
            return jax.grad(lambda psi: d_i @ phi(psi, batch))(psi)

        return work.mean(batch_gradient), ()

    def tune(server, client, work):
        v_i, _ = embed(server.psi, client, work)
        return Weights(model(server.theta, v_i), server.stats), ()

    train_h, train_phi = partial(train_theta, adam), partial(train_psi, adam)
    collecting = Exchange(lambda server, id: server.psi, embed, keep_embeddings, wire.all_itself)
    training = Exchange(send, pseudo_gradient(task), train_h, updates=model_references, alike=False)
    pulling = Exchange(
        lambda server, id: (server.psi, server.d[id]), pull_back, train_phi, psi_references
    )
    return Method(
        init=partial(first_state, task, adam, embedding_dim),
        round=(collecting, training, pulling),
        predict=lambda w_i, client, x: task.apply(w_i, x).logits,
        newcomer=None,
        sample=sampling.by_size,
        tune=tune,
        scored=everything,
        join=tune,
    )


def first_state(task: Task, adam, embedding_dim: int, key: Array, num_clients: int) -> State:
    """Returns the first state, in which the models that h makes are near one first model."""
    w, e = task.init(key), embedding_dim or hypernetwork.embedding_size(num_clients)
    theta = hypernetwork.first_weights(streams.extra(key), w.params, e, WIDTH)
    theta = theta._replace(kernel=optax.tree.scale(0.1, theta.kernel), bias=w.params)
    psi = first_embedding(task, streams.extra(key, 2), e)
    nothing, moments = jnp.zeros((num_clients, e)), (adam.init(theta), adam.init(psi))
    return State(Server(theta, psi, moments, v=nothing, d=nothing, stats=w.stats), ())


def first_embedding(task: Task, key: Array, e: int) -> PyTree:
    """Returns the first psi: the body of a model, and the layer that replaces its head."""
    k_body, k_kernel, k_bias = jax.random.split(key, 3)
    w = task.init(k_body)
    inputs = w.params[task.head]["kernel"].shape[0] + task.num_classes
    _, body = tree.split(tree.within((task.head,)), w)
    return {"body": body, "last": first_affine(k_kernel, k_bias, inputs, e)}


def embedding(task: Task, K: int, psi: PyTree, batch: Batch) -> Array:
    """Returns the mean of phi(x, y; psi) over a batch [e]."""
    body = _heads.whole(task, psi["body"])
    body = body._replace(stats=jax.lax.stop_gradient(body.stats))
    h = task.apply(body, batch.x).features
    given = jnp.concatenate([h, jax.nn.one_hot(batch.y, K)], 1)
    return losses.masked_mean(affine(psi["last"], given), batch.mask)


def model(theta: hypernetwork.Hypernetwork, v_i: Array) -> PyTree:
    """Returns the parameters h(v_i; theta)."""
    return hypernetwork.generate(theta, v_i, ACTIVATION)


def send(server: Server, id: Array) -> Weights:
    """Sends w_i."""
    return Weights(model(server.theta, server.v[id]), server.stats)


def keep_embeddings(server: Server, v: Array, cohort: Client) -> Server:
    """Stores the embeddings of the round's clients."""
    return server._replace(v=server.v.at[cohort.id].set(v))


def train_theta(adam, server: Server, uploads: Weights, cohort: Client) -> Server:
    """Updates theta, and computes the gradients of the embeddings of the round's clients."""
    share, v = sampling.equal_shares(cohort.arrived), server.v[cohort.id]
    delta = jax.vmap(optax.tree.scale)(share, uploads.params)
    _, pull = jax.vjp(lambda theta, v: jax.vmap(partial(model, theta))(v), server.theta, v)
    g, d = pull(delta)
    of_theta, of_psi = server.moments
    theta, of_theta = step(adam, server.theta, g, of_theta)
    return server._replace(
        theta=theta,
        moments=(of_theta, of_psi),
        d=server.d.at[cohort.id].set(d),
        stats=tree.mix(cohort.weight, uploads.stats),
    )


def train_psi(adam, server: Server, u: PyTree, cohort: Client) -> Server:
    """Updates psi."""
    of_theta, of_psi = server.moments
    psi, of_psi = step(adam, server.psi, tree.mix(cohort.arrived, u), of_psi)
    return server._replace(psi=psi, moments=(of_theta, of_psi))


def step(adam, params: PyTree, gradient: PyTree, moments: PyTree) -> tuple[PyTree, PyTree]:
    """Returns the parameters and the moments after a step of Adam."""
    updates, moments = adam.update(gradient, moments, params)
    return optax.apply_updates(params, updates), moments


def psi_references(message, id, u):
    """Marks the gradient of psi as an update, and that of the running statistics as none."""
    return {"body": wire.update_references(u["body"]), "last": wire.itself(u["last"])}
