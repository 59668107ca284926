"""pFedSim (Tan et al., 2023, arXiv:2305.15706): bodies averaged by the similarity of heads.

  send    u_i = sum_j psi_ij b_j,  psi_ij = -log(1 - phi_ij) / sum_k -log(1 - phi_ik)
  local   (b_i, h_i) <- SGD on F_i from (u_i, h_i)
  server  keeps every client's last b_i;  phi_ij <- max(0, cos(h_i, h_j)) of two participants

The run begins with FedAvg for a share `warmup` of its rounds, whose model is the first (b_i, h_i)
of all clients. cos is the mean over classes of the cosines of the columns of the kernel of h_i,
which stays on the client and is sent only for this. phi_ii is 0.9999, and phi_ij is 0 until both
clients have taken part in the same round, as in FL-bench, which is by the paper's first author. A
client predicts with its last (b_i, h_i). Running statistics are mixed like parameters of the body.
The server keeps C bodies and, in memory O(C^2), phi.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods._sizes import check_pairs
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import BelowOne, checked, choice
from fedjax_lab.types import Array, Exchange, Method, Stage, Stages, State, Task, Weights

RANGES = {"warmup": choice(0.25, 0.5, 0.75)}
OWN = 0.9999  # phi_ii


class Server(NamedTuple):
    """The server's state."""

    bodies: Weights  # leaves [C, ...]
    phi: Array  # [C, C], with OWN on the diagonal


@checked("method")
def pfedsim(task: Task, *, warmup: BelowOne = 0.5) -> Stages:
    """warmup: the share of config.run.rounds that are rounds of FedAvg, below 1."""
    in_head, risk = tree.within((task.head,)), losses.risk(task)

    def start(key, num_clients, last, facts):
        check_pairs("pfedsim", num_clients)
        w = task.init(key) if last is None else last.server
        private = tree.repeat(w, num_clients)
        return State(Server(tree.split(in_head, private)[1], OWN * jnp.eye(num_clients)), private)

    def local(u_i, client, work):
        private, _ = tree.split(in_head, client.private)
        w = work.train(tree.join(u_i, private), risk)
        return w, w

    def aggregate(server, w, cohort):
        heads, bodies = tree.split(in_head, w)
        return Server(
            bodies=tree.put(server.bodies, cohort.id, bodies),
            phi=with_similarities(server.phi, cohort.id, heads.params["head"]["kernel"]),
        )

    method = Method(
        init=None,
        round=(Exchange(send, local, aggregate, updates=partial(updates, in_head), alike=False),),
        predict=lambda message, client, x: task.apply(client.private, x).logits,
        newcomer=None,
        sample=sampling.by_size,
        scored=lambda server, id: (),
    )

    def stages(rounds):
        first = int(warmup * rounds)
        second = Stage("personalize", method, rounds - first, start=start)
        return (Stage("warmup", fedavg(task), first), second) if first else (second,)

    return stages


def send(server: Server, id: Array) -> Weights:
    """Sends u_i."""
    psi = -jnp.log(1 - server.phi[id])
    return tree.mix(psi / jnp.sum(psi), server.bodies)


def updates(in_head, u_i, id, w):
    """Marks the body as an update of u_i, and the head as an update itself."""
    head, body = tree.split(in_head, w)
    return tree.join(wire.model_references(u_i, body), wire.update_references(head))


def with_similarities(phi: Array, ids: Array, kernels: Array) -> Array:
    """Returns phi with the similarities of the clients `ids`, whose kernels are [M, D, K]."""
    columns = losses.unit(jnp.swapaxes(kernels, 1, 2))  # [M, K, D]
    cosines = jnp.einsum("ikd,jkd->ijk", columns, columns, precision="highest")
    near = jnp.clip(jnp.mean(cosines, -1), 0, OWN)
    near = jnp.where(jnp.eye(len(ids), dtype=bool), OWN, near)
    return phi.at[ids[:, None], ids].set(near)
