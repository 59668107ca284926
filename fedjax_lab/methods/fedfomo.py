"""FedFomo (Zhang et al., ICLR 2021, arXiv:2012.08565): each client weighs the models of others.

  send    the last models w_n of M others: with probability 1 - epsilon those of the largest P_in,
          else any
  local   v_n = (L_i(w_i) - L_i(w_n)) / ||w_n - w_i||, L_i the loss on validation examples
          w_i <- w_i + sum_n max(v_n, 0) / sum_m max(v_m, 0) (w_n - w_i), then SGD on F_i
          up go w_i and the v_n
  server  keeps the models apart;  P_in <- P_in + v_n

Of equal P_in any comes first. The paper's w_i in v_n is the client's model of the round before, and
its new one is among the w_n; here w_i is its last one after training, so that who is sent nothing
trains alone. The paper's epsilon falls; here it stays. Running statistics are mixed with the
parameters, but do not count in the norm. A client without validation examples weighs nobody. The
server keeps C models and, in memory O(C^2), P. A client is sent M models and sends one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, streams, tree, wire
from fedjax_lab.errors import check_not_negative, check_pairs, check_share
from fedjax_lab.ranges import choice, uniform
from fedjax_lab.types import Array, Exchange, Method, State, Task, Weights

RANGES = {"models": choice(3, 5, 10), "epsilon": uniform(0.0, 0.5)}


class Server(NamedTuple):
    """What the server knows."""

    models: Weights  # the clients' last ones, leaves [C, ...]
    trained: Array  # [C] whether there is one
    P: Array  # [C, C]
    key: Array  # of who is sent which models in the next round


class Message(NamedTuple):
    """What a client is sent."""

    models: Weights  # leaves [M, ...]
    ids: Array  # [M] whose they are; -1: nobody's


class Upload(NamedTuple):
    """What it sends."""

    model: Weights
    v: Array  # [M]
    ids: Array  # [M] whom they are of


def fedfomo(task: Task, *, models: int = 5, epsilon: float = 0.3) -> Method:
    """models: how many models of others a client is sent; 0 is Local with a cohort.

    epsilon: the probability that a client is sent models at random.
    """
    check_not_negative("method.models", models)
    check_share("method.epsilon", epsilon)
    risk = losses.risk(task)

    def init(key, num_clients):
        check_pairs("fedfomo", num_clients)
        w = tree.repeat(task.init(key), num_clients)
        nobody, P = jnp.zeros(num_clients, bool), jnp.zeros((num_clients, num_clients))
        return State(Server(w, nobody, P, streams.extra(key)), w)

    def send(server, id):
        return chosen(server, id, models, epsilon)

    def local(message, client, work):
        w_i = client.private
        v = usefulness(risk, message, w_i, work)
        share = jnp.maximum(v, 0) / jnp.maximum(jnp.sum(jnp.maximum(v, 0)), 1e-12)
        w = tree.add(w_i, tree.mix(share, tree.sub(message.models, w_i)))
        w = work.train(w, risk)
        return Upload(w, v, message.ids), w

    def predict(nothing, client, x):
        return task.apply(client.private, x).logits

    exchange = Exchange(send, local, aggregate, updates=updates, alike=False, draws=True)
    return Method(
        init=init,
        round=(exchange,),
        predict=predict,
        newcomer=None,
        sample=sampling.by_size,
        scored=lambda server, id: (),
        validation=True,
    )


def chosen(server: Server, id: Array, models: int, epsilon: float) -> Message:
    """The models for one client."""
    k_explore, k_ties = jax.random.split(jax.random.fold_in(server.key, id))
    C = len(server.trained)
    useful = jnp.where(jax.random.bernoulli(k_explore, epsilon), 0, server.P[id])
    others = server.trained & (jnp.arange(C) != id)
    useful = jnp.where(others, useful, -jnp.inf)
    ids = jnp.lexsort((jax.random.uniform(k_ties, (C,)), -useful))[: min(models, C - 1)]
    return Message(tree.take(server.models, ids), jnp.where(others[ids], ids, -1))


def usefulness(risk: losses.Loss, message: Message, w_i: Weights, work) -> Array:
    """v [M] of the models that a client was sent; 0 of nobody's."""

    def both(batch):
        each = jax.vmap(lambda w: risk(w, batch, None)[0])(message.models)
        return risk(w_i, batch, None)[0], each

    L_i, L = work.mean(both, rows="validation")
    away = jax.vmap(tree.sq_norm)(tree.sub(message.models.params, w_i.params))  # [M]
    v = (L_i - L) / jnp.maximum(jnp.sqrt(away), 1e-12)
    return jnp.where(message.ids >= 0, v, 0)


def aggregate(server, upload, cohort):
    """The new models, and what they have shown of the others."""
    return Server(
        models=tree.put(server.models, cohort.id, upload.model),
        trained=server.trained.at[cohort.id].set(True),
        P=server.P.at[cohort.id[:, None], upload.ids].add(upload.v),
        key=cohort.key[0],
    )


def updates(message, id, upload):
    """The model counts as an update itself, since it was trained from none that was sent."""
    return Upload(wire.of_pseudo_gradient(upload.model), wire.KEPT, wire.KEPT)
