"""FedPAC (Xu et al., ICLR 2023, arXiv:2306.11867): feature alignment and classifier combination.

  send    theta_t, the body; h_i, the client's head; c_k, the global mean features of class k
  local   H_i,k = n_ik/n_i times the mean of theta_t(x) over class k
          V_i = (mean |theta_t(x)|^2 - |H_i|^2) / n_i
          h_i <- SGD on F_i(theta_t, h), head_epochs
          theta_i <- SGD on F_i(theta, h_i) + lam mean_b |theta(x_b) - c_{y_b}|^2 / D
          c_ik = mean of theta_i(x) over class k
  server  theta_{t+1} = sum_i n_i/n theta_i;  c_k = sum_i n_ik c_ik / sum_i n_ik
          h_i <- sum_j a_j h_j, where a, on the simplex, minimizes
                 sum_j a_j^2 V_j + |H_i - sum_j a_j H_j|^2

Heads are combined over the clients of the round; other clients keep their heads. The minimum is
computed by `solver_steps` steps of accelerated projected gradient descent; the authors' code calls
a solver, and drops shares below 0.001. The alignment is a mean over features, as in that code.
PFLlib averages the c_ik without n_ik. A client that joins later has no head and thus no model. For
K classes and D features, a client receives one model and K D numbers, and sends one model and twice
as many numbers.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods.fedper import head
from fedjax_lab.methods.fedproto import prototypes, sums_by_class
from fedjax_lab.ranges import Positive, checked, choice, log_uniform
from fedjax_lab.types import Array, Batch, Client, Exchange, Method, PyTree, State, Task, Weights

RANGES = {"lam": log_uniform(0.1, 10.0), "head_epochs": choice(1, 2)}


class Message(NamedTuple):
    """The message to a client. The server's state is the same, with the heads of all clients."""

    body: PyTree
    heads: PyTree
    c: Array  # [K, D]
    exists: Array  # [K] whether there is a c_k


class Upload(NamedTuple):
    """The upload of a client."""

    w: Weights
    c: Array  # [K, D]
    counts: Array  # [K] n_ik
    H: Array  # [K, D]
    V: Array  # []


@checked("method")
def fedpac(
    task: Task,
    *,
    lam: float = 1.0,
    head_epochs: int = 1,
    combine: bool = True,
    solver_steps: Positive[int] = 200,
) -> Method:
    """lam: weight of the alignment; with 0, and without `combine`, it is FedRep.

    head_epochs: passes of a round in which the head is trained, before the body.
    combine: whether heads are combined; otherwise each client keeps its own head.
    solver_steps: steps of the gradient descent that computes the weights a of the heads.
    """
    risk, K = losses.risk(task), task.num_classes
    in_head = tree.within(head(task, 1))

    def init(key, num_clients):
        top, body = tree.split(in_head, task.init(key))
        c = jnp.zeros((K, top.params["head"]["kernel"].shape[0]))
        return State(Message(body, tree.repeat(top, num_clients), c, jnp.zeros(K)), ())

    def send(server, id):
        return server._replace(heads=tree.take(server.heads, id))

    def local(message, client, work):
        def aligned(w, batch, key):
            value, out = risk(w, batch, key)
            distance = jnp.mean((out.features - message.c[batch.y]) ** 2, -1)
            pull = losses.masked_mean(distance * message.exists[batch.y], batch.mask)
            return value + lam * pull, out

        w = tree.join(message.heads, message.body)
        H, square = work.mean(partial(moments, task, w))
        w = work.train(w, risk, only=in_head, epochs=head_epochs)
        w = work.train(w, aligned, only=lambda name: not in_head(name))
        c, _ = prototypes(lambda x: task.apply(w, x).features, K, client, work)
        V = (square - jnp.sum(H**2)) / client.n
        return Upload(w, c, client.label_count, H, V), client.private

    def predict(message, client, x):
        return task.apply(tree.join(message.heads, message.body), x).logits

    aggregate = partial(merge, in_head, solver_steps if combine else None)
    exchange = Exchange(send, local, aggregate, updates=updates, alike=False)
    return Method(
        init=init, round=(exchange,), predict=predict, newcomer=None, sample=sampling.by_size
    )


def moments(task: Task, w: Weights, batch: Batch) -> tuple[Array, Array]:
    """Returns H [K, D] of one batch, and the mean squared norm of its features []."""
    h = task.apply(w, batch.x).features
    square = losses.masked_mean(jnp.sum(h**2, -1), batch.mask)
    return sums_by_class(h, batch, task.num_classes), square


def merge(in_head, steps: int | None, server: Message, uploads: Upload, cohort: Client) -> Message:
    """Averages bodies and mean features and combines heads; steps=None: heads stay separate."""
    heads, bodies = tree.split(in_head, uploads.w)
    if steps is not None:
        heads = tree.mix(shares(uploads.H, uploads.V, cohort.arrived, steps), heads)
    count = jnp.sum(uploads.counts, 0)  # [K]
    c = jnp.sum(uploads.counts[..., None] * uploads.c, 0) / jnp.maximum(count, 1)[:, None]
    return Message(
        body=tree.mix(cohort.weight, bodies),
        heads=tree.put(server.heads, cohort.id, heads),
        c=c,
        exists=(count > 0).astype(jnp.float32),
    )


def shares(H: Array, V: Array, arrived: Array, steps: int) -> Array:
    """Returns a [M, M]; row i has the weights of all heads in that of client i, 0 for lost ones."""
    lost = jnp.where(arrived, 0.0, 1e9)
    start = jnp.where(arrived, 1 / jnp.sum(arrived), 0.0)

    def solve_client(H_i):
        apart = (H_i - H).reshape(len(H), -1)
        Q = apart @ apart.T + jnp.diag(jnp.maximum(V, 0))
        rate = 1 / jnp.maximum(jnp.linalg.norm(Q), 1e-12)

        def step(k, carry):
            a, ahead = carry
            b = optax.projections.projection_simplex(ahead - rate * (Q @ ahead) - lost)
            return b, b + k / (k + 3) * (b - a)

        return jax.lax.fori_loop(0, steps, step, (start, start))[0]

    return jax.lax.map(solve_client, H)


def updates(message, id, upload):
    """Marks the model as an update of the one sent, and features and variances as updates."""
    w = wire.model_references(tree.join(message.heads, message.body), upload.w)
    return wire.itself(upload)._replace(w=w, counts=wire.kept(upload.counts))
