"""FedCross (Hu et al., ICDE 2024, arXiv:2210.08285): several models, which are mixed in pairs.

  send    w_j, one of the K middleware models, dealt at random to the clients of the round
  local   v_i <- SGD on F_i from w_j
  server  v_j = sum_i n_i/n v_i over the clients that got w_j
          w_j <- alpha v_j + (1 - alpha) v_co(j)        (Alg. 1)

co(j) is the other model with the lowest cosine similarity of the parameters to v_j, the one with
the highest, or the model in_order: j + 1 + t mod (K - 1), modulo K, in round t. The mean of the w_j
is the global model, with which all clients are scored. In the paper a round has K clients; in a
larger one several clients train the same model, and in a smaller one, or if an upload is lost, the
models without an upload keep v_j = w_j. With config.run.sampling clients are drawn without regard
to their models, so that this happens in every round. The paper's alphas are from 0.5 to 0.999, and
FL-bench's default is 0.99; in short runs a lower one keeps the models together. The accelerations
(propeller models, and an alpha that grows in the first rounds) are left out. Running statistics are
mixed like parameters.
"""

from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import streams, tree
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import OneOf, Positive, Share, checked, choice
from fedjax_lab.types import Array, Client, Method, PyTree, State, Task, Weights

COLLABORATORS = "lowest", "highest", "in_order"
RANGES = {"alpha": choice(0.5, 0.8, 0.9, 0.99), "collaborator": choice(*COLLABORATORS)}


class Server(NamedTuple):
    """The server's state."""

    w: Weights  # leaves [K, ...]
    order: Array  # [C] the clients in the random order in which the next round takes them
    model: Array  # [C] the model that each of them would get
    t: Array  # the number of rounds so far


@checked("method")
def fedcross(
    task: Task,
    *,
    models: Positive[int] = 5,
    alpha: Share = 0.8,
    collaborator: Annotated[str, OneOf(COLLABORATORS)] = "lowest",
) -> Method:
    """models: K, in the paper the number of clients in a round; 1 is FedAvg.

    alpha: share of a model's own training in it; the rest is that of its collaborator.
    collaborator: how co(j) is chosen: lowest, highest or in_order.
    """

    def init(key, num_clients):
        order, model = dealt(streams.extra(key), models, num_clients)
        return State(Server(tree.repeat(task.init(key), models), order, model, jnp.int32(0)), ())

    def send(server, id):
        return tree.take(server.w, server.model[id])

    method = fedavg(task)
    step = partial(aggregate, alpha, collaborator)
    exchange = method.round[0]._replace(send=send, aggregate=step, alike=False)
    return method._replace(
        init=init,
        round=(exchange,),
        newcomer=lambda state: (global_model(state.server), ()),
        sample=sample,
        scored=lambda server, id: global_model(server),
    )


def dealt(key: Array, models: int, num_clients: int) -> tuple[Array, Array]:
    """Returns the clients in random order, and the model of each: any K in a row differ."""
    order = jax.random.permutation(key, num_clients)
    first = jax.random.randint(streams.extra(key), (), 0, models)
    in_turn = (first + jnp.arange(num_clients)) % models
    return order, jnp.zeros_like(in_turn).at[order].set(in_turn)


def sample(key: Array, server: PyTree, population: Client, m: int) -> tuple[Array, Array]:
    """The next m clients in the server's random order; share n_i / sum_j n_j over the sample."""
    ids = server.order[:m]
    return ids, population.n[ids] / jnp.sum(population.n[ids])


def aggregate(alpha: float, collaborator: str, server: Server, v: Weights, cohort: Client):
    """Averages the uploads of each model, mixes the models in pairs, and deals them anew."""
    K, num_clients = jax.tree.leaves(server.w)[0].shape[0], len(server.order)
    share = jax.nn.one_hot(server.model[cohort.id], K).T * cohort.weight  # [K, M]
    v_j = clusters.average(share, v, server.w)
    other = tree.take(v_j, chosen(collaborator, v_j.params, server.t))
    w = tree.add(optax.tree.scale(alpha, v_j), other, 1 - alpha)  # Alg. 1
    return Server(w, *dealt(cohort.key[0], K, num_clients), server.t + 1)


def chosen(collaborator: str, v: PyTree, t: Array) -> Array:
    """Returns co(j) [K] for the parameters v, leaves [K, ...], in round t."""
    K = jax.tree.leaves(v)[0].shape[0]
    if K == 1 or collaborator == "in_order":
        return (jnp.arange(K) + 1 + t % max(K - 1, 1)) % K
    dots = tree.inner_products(v)
    length = jnp.sqrt(jnp.maximum(jnp.diagonal(dots), 1e-16))
    sign = 1 if collaborator == "highest" else -1
    near = sign * dots / (length[:, None] * length)
    return jnp.argmax(jnp.where(jnp.eye(K, dtype=bool), -jnp.inf, near), 1)


def global_model(server: Server) -> Weights:
    """Returns the mean of the middleware models."""
    return jax.tree.map(lambda a: jnp.mean(a, 0), server.w)
