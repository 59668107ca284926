"""FedMTL (Smith, Chiang, Sanjabi, Talwalkar, NeurIPS 2017, arXiv:1705.10467): multi-task learning.

  send    u_i = sum_{j != i} Omega_ij w_j,  Omega_ii
  local   w_i <- SGD on F_i(w) + lam (Omega_ii ||w||^2 + 2 w^T u_i) from w_i
  server  keeps every client's last w_i, as the columns of W, and updates Omega

The clients minimize sum_i F_i(w_i) + lam tr(W Omega W^T) over W. MOCHA, the paper's method, solves
the dual of this problem for linear models; here it is minimized by SGD for any model, as in PFLlib.
relation=mean has the fixed Omega = I - 1/C, with which the term is lam sum_i ||w_i - w||^2 around
the mean w; relation=learned has Omega = S^{-1}, S = (W^T W)^{1/2} / tr (W^T W)^{1/2}, whose
eigenvalues count as at least `floor`. In PFLlib, whose Omega is fixed, W has only the models of the
round, and the factor of the term follows from the number of parameters. A client predicts with w_i,
which keeps its running statistics. A client receives a model and a number, and sends a model.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods._sizes import check_pairs
from fedjax_lab.ranges import Positive, checked, choice, log_uniform
from fedjax_lab.types import Array, Exchange, Method, PyTree, State, Task

RANGES = {"lam": log_uniform(1e-5, 1.0), "relation": choice("mean", "learned")}


class Server(NamedTuple):
    """The server's state."""

    W: PyTree  # parameters of all clients, leaves [C, ...]
    Omega: Array  # [C, C]


@checked("method")
def fedmtl(
    task: Task,
    *,
    lam: float = 0.001,
    relation: Literal["mean", "learned"] = "learned",
    floor: Positive[float] = 0.01,
) -> Method:
    """lam: weight of the term; with 0 it is Local, but with sampled clients.

    relation: mean, all clients are alike; learned, Omega follows the models.
    floor: the smallest eigenvalue of S.
    """
    risk = losses.risk(task)

    def init(key, num_clients):
        check_pairs("fedmtl", num_clients)
        w = tree.repeat(task.init(key), num_clients)
        return State(Server(w.params, mean_relation(num_clients)), w)

    def local(message, client, work):
        u_i, omega_ii = message
        pull = optax.stateless(
            lambda g, w: jax.tree.map(lambda a, b, c: a + 2 * lam * (omega_ii * b + c), g, w, u_i)
        )
        w = work.train(client.private, risk, optimizer=optax.chain(pull, work.optimizer))
        return w.params, w

    def aggregate(server, w, cohort):
        W = tree.put(server.W, cohort.id, w)
        return Server(W, inverse_root(W, floor) if relation == "learned" else server.Omega)

    exchange = Exchange(send, local, aggregate, updates=wire.all_itself, alike=False)
    return Method(
        init=init,
        round=(exchange,),
        predict=lambda message, client, x: task.apply(client.private, x).logits,
        newcomer=None,
        sample=sampling.by_size,
        scored=lambda server, id: (),
    )


def send(server: Server, id: Array) -> tuple[PyTree, Array]:
    """Sends u_i and Omega_ii."""
    row = server.Omega[id]
    return tree.mix(row.at[id].set(0), server.W), row[id]


def mean_relation(num_clients: int) -> Array:
    """Returns I - 1/C, [C, C]."""
    return jnp.eye(num_clients, dtype=jnp.float32) - 1 / num_clients


def inverse_root(W: PyTree, floor: float) -> Array:
    """Returns the inverse of (W^T W)^{1/2} / tr (W^T W)^{1/2}, [C, C]."""
    flat = [a.reshape(len(a), -1).astype(jnp.float32) for a in jax.tree.leaves(W)]
    fewest = jnp.zeros((len(flat[0]), len(flat[0])))  # there may be fewer parameters than clients
    R = jnp.concatenate([fewest, *(jnp.linalg.qr(a.T, mode="r") for a in flat)])
    _, root, rows = jnp.linalg.svd(R, full_matrices=False)  # more exact than eigh(W^T W = R^T R)
    S = jnp.maximum(root / jnp.maximum(jnp.sum(root), 1e-12), floor)
    return jnp.matmul(rows.T / S, rows, precision="highest")
