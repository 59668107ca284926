"""FedFomo (Zhang et al., ICLR 2021, arXiv:2012.08565): clients weigh the models of other clients.

  send    the last models w_n of M others: with probability 1 - epsilon those of the largest P_in,
          otherwise random ones
  local   v_n = (L_i(w_i') - L_i(w_n)) / ||w_n - w_i'||, L_i the loss on validation examples
          w_i <- sum_n max(v_n, 0) / sum_m max(v_m, 0) w_n, then SGD on F_i
          upload w_i and the v_n
  server  keeps the models apart;  P_in <- P_in + v_n

The reference w_i' is the client's model of the round before: as in the commands of the authors'
code (NVlabs/FedFomo, `first_model`) and in PFLlib, the model from which its last training began.
Its last model w_i is among the w_n without being sent. Without a positive v_n, or without
validation examples, the client trains w_i, as in PFLlib; the paper's formula goes back to w_i'.
With reference=last, w_i' is w_i, and the client needs no second model. Ties between equal P_in are
broken at random. The paper's epsilon decreases; here it is constant. Running statistics are mixed
like the parameters, but are not part of the norm. The server keeps C models and, in memory O(C^2),
P. A client receives M models and sends one.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, streams, tree, wire
from fedjax_lab.methods._sizes import check_pairs
from fedjax_lab.ranges import Share, checked, choice, uniform
from fedjax_lab.types import Array, Exchange, Method, State, Task, Weights

RANGES = {"models": choice(3, 5, 10), "epsilon": uniform(0.0, 0.5)}


class Server(NamedTuple):
    """The server's state."""

    models: Weights  # the clients' last models, leaves [C, ...]
    trained: Array  # [C] whether the client has trained a model
    P: Array  # [C, C]
    key: Array  # random key that chooses the models for each client in the next round


class Message(NamedTuple):
    """The message to a client."""

    models: Weights  # leaves [M, ...]
    ids: Array  # [M] the clients that trained them; -1: not trained


class Upload(NamedTuple):
    """The upload of a client."""

    model: Weights
    v: Array  # [M]
    ids: Array  # [M] the clients that v is about


@checked("method")
def fedfomo(
    task: Task,
    *,
    models: int = 5,
    epsilon: Share = 0.3,
    reference: Literal["previous", "last"] = "previous",
) -> Method:
    """models: M, the number of models of other clients that a client receives; with 0 it is Local,
    but with sampled clients.

    epsilon: the probability that a client receives randomly chosen models.
    reference: previous, other models are compared with the model from which the client's last
        training began; or last, with the model in which it ended.
    """
    risk = losses.risk(task)

    def init(key, num_clients):
        check_pairs("fedfomo", num_clients)
        w = tree.repeat(task.init(key), num_clients)
        trained, P = jnp.zeros(num_clients, bool), jnp.zeros((num_clients, num_clients))
        private = (w, w) if reference == "previous" else (w,)
        return State(Server(w, trained, P, streams.extra(key)), private)

    def local(message, client, work):
        w_i, before = client.private[0], client.private[-1]
        each = with_own(message, client.id, w_i)
        v = usefulness(risk, each, before, work)
        positive, total = jnp.maximum(v, 0), jnp.sum(jnp.maximum(v, 0))
        mixed = tree.mix(positive / jnp.maximum(total, 1e-12), each.models)
        start = tree.where(total > 0, mixed, w_i)
        w = work.train(start, risk)
        return Upload(w, v[:-1], message.ids), (w, start)[: len(client.private)]

    send = partial(chosen, models=models, epsilon=epsilon)
    return Method(
        init=init,
        round=(Exchange(send, local, aggregate, updates=updates, alike=False),),
        predict=lambda nothing, client, x: task.apply(client.private[0], x).logits,
        newcomer=None,
        sample=sampling.by_size,
        scored=lambda server, id: (),
        validation=True,
    )


def chosen(server: Server, id: Array, models: int, epsilon: float) -> Message:
    """Returns the models that one client receives."""
    k_explore, k_ties = jax.random.split(jax.random.fold_in(server.key, id))
    C = len(server.trained)
    useful = jnp.where(jax.random.bernoulli(k_explore, epsilon), 0, server.P[id])
    others = server.trained & (jnp.arange(C) != id)
    useful = jnp.where(others, useful, -jnp.inf)
    ids = jnp.lexsort((jax.random.uniform(k_ties, (C,)), -useful))[: min(models, C - 1)]
    return Message(tree.take(server.models, ids), jnp.where(others[ids], ids, -1))


def with_own(message: Message, id: Array, w_i: Weights) -> Message:
    """Adds the client's own model to those that it has received."""
    models = jax.tree.map(lambda a, w: jnp.concatenate([a, w[None]]), message.models, w_i)
    return Message(models, jnp.append(message.ids, id))


def usefulness(risk: losses.Loss, message: Message, w_i: Weights, work) -> Array:
    """Returns v [M] of models, beside the reference w_i; 0 for models without a client."""

    def both(batch):
        each = jax.vmap(lambda w: risk(w, batch, None)[0])(message.models)
        return risk(w_i, batch, None)[0], each

    L_i, L = work.mean(both, rows="validation")
    away = jax.vmap(tree.sq_norm)(optax.tree.sub(message.models.params, w_i.params))  # [M]
    v = (L_i - L) / jnp.maximum(jnp.sqrt(away), 1e-12)
    return jnp.where(message.ids >= 0, v, 0)


def aggregate(server, upload, cohort):
    """Stores the new models, and adds their v to P."""
    return Server(
        models=tree.put(server.models, cohort.id, upload.model),
        trained=server.trained.at[cohort.id].set(True),
        P=server.P.at[cohort.id[:, None], upload.ids].add(upload.v),
        key=cohort.key[0],
    )


def updates(message, id, upload):
    """Marks the model itself as an update, since it did not start from a sent model."""
    return Upload(wire.update_references(upload.model), wire.KEPT, wire.KEPT)
