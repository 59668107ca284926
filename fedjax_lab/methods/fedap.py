"""FedAP (Lu et al., IEEE Transactions on Big Data 2022, arXiv:2112.00734): adaptive BatchNorm.

  send    u_i = sum_j w_ij psi_j
  local   (psi_i, phi_i) <- SGD on F_i from (u_i, phi_i), phi_i the BatchNorm layers
  server  keeps every client's last psi_i            (Alg. 1)

  d_ij = sum_l (||mu_il - mu_jl||^2 + ||sqrt(r_il) - sqrt(r_jl)||^2)^1/2 is the distance of the
  inputs of BatchNorm layers l with means mu and variances r, as Gaussians
  w_ii = lam,  w_ij = (1 - lam) (1 / d_ij) / sum_{k != i} 1 / d_ik

The paper takes mu and r from a pre-trained model. Without one, as here, its f-FedAP takes them from
rounds of FedBN: a share `warmup` of the rounds, whose models are also the first (psi_i, phi_i). In
the last of these rounds all clients take part, without lost uploads, and send mu_i and r_i, their
running statistics. In the paper all clients take part in every round; here the other clients keep
their last psi_i. A client predicts with (u_i, phi_i). The server keeps C models and, in memory
O(C^2), w.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import sampling, tree, wire
from fedjax_lab.methods import _pairs
from fedjax_lab.methods._sizes import check_pairs
from fedjax_lab.methods._stages import go_on
from fedjax_lab.methods.fedbn import fedbn
from fedjax_lab.ranges import BelowOne, Share, checked, choice, uniform
from fedjax_lab.simulation import needs
from fedjax_lab.types import Array, Exchange, Method, PyTree, Stage, Stages, State, Task, Weights

RANGES = {"lam": uniform(0.1, 0.9), "warmup": choice(0.1, 0.25, 0.5)}


class Server(NamedTuple):
    """The server's state."""

    psi: Weights  # leaves [C, ...]
    w: Array  # [C, C]


@checked("method")
def fedap(task: Task, *, lam: Share = 0.5, warmup: BelowOne = 0.5) -> Stages:
    """lam: w_ii, the weight of a client's own model; with 1 clients train alone after the warmup.

    warmup: the share of config.run.rounds that are rounds of FedBN, below 1; at least one round.
    """
    bn = fedbn(task)
    (plain,) = bn.round

    def start(key, num_clients, last, facts):
        check_pairs("fedap", num_clients)
        shared, private = bn.init(key, num_clients) if last is None else last
        return State(Server(tree.repeat(shared, num_clients), jnp.eye(num_clients)), private)

    def with_statistics(u_i, client, work):
        psi, phi = plain.local(u_i, client, work)
        return (psi, phi.stats), phi

    def compare(server, uploads, cohort):
        psi, stats = uploads
        w = weights(distances(stats), lam)
        return aggregate(server, psi, cohort)._replace(
            w=server.w.at[cohort.id[:, None], cohort.id].set(w)
        )

    first = Exchange(send, with_statistics, compare, updates=updates, alike=False)
    similarities = bn._replace(init=None, round=(first,), sample=sampling.all_clients)
    exchange = plain._replace(send=send, aggregate=aggregate, alike=False)
    personal = bn._replace(init=None, round=(exchange,))

    return partial(stages, task, warmup, start, (bn, similarities, personal))


def stages(
    task: Task, warmup: float, start: Callable[..., State], each: tuple[Method, ...], rounds: int
) -> tuple[Stage, ...]:
    """Returns the stages of a run; each: their methods. start: the start of the second one.

    Raises BadInput if the model has no BatchNorm layers.
    """
    needs.check(task, "batch_norms", what="method fedap: ")
    bn, similarities, personal = each
    before = max(int(warmup * rounds) - 1, 0)

    return (
        *((Stage("warmup", bn, before),) if before else ()),
        Stage("similarities", similarities, 1, start=start, reliable=True),
        Stage("personalize", personal, rounds - before - 1, start=go_on),
    )


def send(server: Server, id: Array) -> Weights:
    """Sends u_i."""
    return tree.mix(server.w[id], server.psi)


def aggregate(server, psi, cohort):
    """Stores the new psi_i."""
    return server._replace(psi=tree.put(server.psi, cohort.id, psi))  # Alg. 1


def updates(u_i, id, upload):
    """Marks psi_i as an update of u_i, and the statistics as none."""
    psi, stats = upload
    return wire.model_references(u_i, psi), wire.kept(stats)


def distances(stats: PyTree) -> Array:
    """Returns d [C, C] of running statistics, leaves [C, ...] `mean` and `var` of each layer."""
    layers: dict[str, list[Array]] = {}
    for path, a in tree.by_name(stats).items():
        layer, _, name = path.rpartition("/")
        layers.setdefault(layer, []).append(jnp.sqrt(a) if name == "var" else a)

    def to_each(one):
        return sum(jnp.sqrt(_pairs.distances(layers[name], one[name])) for name in layers)

    return jax.lax.map(to_each, layers)


def weights(d: Array, lam: float | Array) -> Array:
    """Returns w [C, C] of the distances d [C, C]."""
    identity = jnp.eye(len(d))
    near = (1 - identity) / jnp.maximum(d, 1e-12)
    total = jnp.sum(near, 1, keepdims=True)
    others = jnp.where(total > 0, near / jnp.where(total > 0, total, 1), identity)
    return lam * identity + (1 - lam) * others
