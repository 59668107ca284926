"""APPLE (Luo and Wu, IJCAI 2022, arXiv:2110.08394): clients learn how much others help them.

  send    the core models w_j of all clients, the number of the round r
  local   SGD on F_i(sum_j p_ij w_j) + lambda(r) mu/2 ||p_i - p_0||^2, in w_i and p_i together
          upload w_i
  server  keeps every client's last w_i

As in the authors' code (ljaiverson/pFL-APPLE), a client predicts with the mixture sum_j p_ij w_j
that its last training has ended with, and p_i is trained with a momentum of 0.9. All w_i start from
the same weights, and p_i from p_0 = (n_j/n)_j; a client that has not taken part counts there as one
of mean size. lambda(r) is (cos(pi r/L) + 1)/2 or 0.001^(r/L), and 0 from round L on. The defaults
are those of the code, where L is a tenth of the rounds, 16 of 160, and mu is not halved. The
gradient in w_i has the factor p_ii, about 1/C, and so has the effect of w_i on a mixture; the
effects of all w_i add up, so that a round is about one of FedAvg with its learning rate divided by
C, until p_ii has grown. In PFLlib `factor` is C. Left out is the paper's limit of the number of
models that a client receives, because it would have to keep outdated models of all others. Running
statistics stay on the client, with its mixture. A client receives C models in each round, its own
among them, and sends one.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, sampling, tree
from fedjax_lab.methods._sizes import check_pairs
from fedjax_lab.methods.fedavg import send
from fedjax_lab.ranges import Positive, checked, choice, log_uniform
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree, State, Task, Weights

RANGES = {
    "factor": choice(1.0, 3.0, 10.0),
    "p_lr": log_uniform(1e-4, 0.1),
    "mu": log_uniform(1e-3, 10.0),
    "L": choice(5, 16, 50),
}


class Server(NamedTuple):
    """The server's state, which is the message too."""

    w: PyTree  # parameters of the core models, leaves [C, ...]
    n: Array  # [C] the sizes of the clients, 0 before they have taken part
    r: Array  # [] int32, the number of the round


class Private(NamedTuple):
    """The state of a client."""

    away: Array  # [C] p_i - p_0
    mixture: Weights  # with which it predicts


@checked("method")
def apple(
    task: Task,
    *,
    factor: Positive[float] = 1.0,
    p_lr: float = 0.001,
    mu: float = 0.1,
    L: Positive[int] = 16,
    scheduler: Literal["cosine", "exponential"] = "exponential",
) -> Method:
    """factor: the learning rate of w_i, as a multiple of that of config.local.

    p_lr: learning rate of p_i.
    mu: weight of the distance of p_i from p_0. L: the round from which on it has none.
    scheduler: how the weight decreases until then: cosine or exponential.
    """
    risk = losses.risk(task)

    def init(key, num_clients):
        check_pairs("apple", num_clients)
        w, zero = task.init(key), jnp.zeros(num_clients)
        server = Server(tree.repeat(w.params, num_clients), zero, jnp.int32(0))
        return State(server, tree.repeat(Private(zero, w), num_clients))

    def local(message, client, work):
        away, (_, stats) = client.private
        coefficient = mu / 2 * decayed(message.r, L, scheduler)
        mixed = partial(mixture, message, client)

        def loss(both, batch, key):
            w_i, away = both.params
            value, out = risk(Weights(mixed(w_i, away), both.stats), batch, key)
            return value + coefficient * jnp.sum(away**2), out

        both = Weights((tree.take(message.w, client.id), away), stats)
        (w_i, away), stats = work.train(
            both, loss, optimizer=joint_optimizer(work.optimizer, factor, p_lr)
        )
        return w_i, Private(away, Weights(mixed(w_i, away), stats))

    return Method(
        init=init,
        round=(Exchange(send, local, aggregate, updates=updates, alike=False),),
        predict=lambda nothing, client, x: task.apply(client.private.mixture, x).logits,
        newcomer=None,
        sample=sampling.by_size,
        scored=lambda server, id: (),
    )


def joint_optimizer(optimizer, factor: float, p_lr: float):
    """Returns the optimizer of (w_i, p_i), made of the one in config.local."""
    parts = {"w": optax.chain(optimizer, optax.scale(factor)), "p": optim.sgd(p_lr, 0.9)}
    return optax.multi_transform(parts, ("w", "p"))


def mixture(message: Server, client: Client, w_i: PyTree, away: Array) -> PyTree:
    """Returns sum_j p_ij w_j with the client's own w_i."""
    n = jnp.where(message.n > 0, message.n, client.mean_n)
    p_0 = n / (client.mean_n * client.num_clients)
    return tree.mix(p_0 + away, tree.put(message.w, client.id, w_i))


def decayed(r: Array, L: int | Array, scheduler: str) -> Array:
    """Returns lambda(r)."""
    cosine = (jnp.cos(jnp.pi * r / L) + 1) / 2
    return jnp.where(r < L, cosine if scheduler == "cosine" else 0.001 ** (r / L), 0)


def aggregate(server, w, cohort):
    """Stores the new core models."""
    n = server.n.at[cohort.id].set(cohort.n)
    return Server(tree.put(server.w, cohort.id, w), n, server.r + 1)


def updates(message, id, upload):
    """Marks the upload as an update of the core model in the message."""
    return tree.take(message.w, id)
