"""Static batch norm (sBN) of HeteroFL: statistics are collected after training, not during it.

  send    the parameters of W_t, as before;  W_{t+1}
  local   training, in which each batch is normalized by its own statistics;
          s_i <- the mean over the client's batches of their statistics, for each level
  server  as before;  s <- sum_i n_i/n s_i

A level is one of the capacities of the run's clients, or 1. Its statistics are those of the part
with this capacity, in training mode and without a scaler. In the authors' code the server collects
those of the whole model once, before it is scored, from all training examples of all clients; here
the clients of each round compute them, which takes one pass of the whole model for each level.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import streams, tree, wire
from fedjax_lab.models import calls
from fedjax_lab.models.modules import batch_norms
from fedjax_lab.simulation import needs
from fedjax_lab.types import Array, Client, Exchange, Method, Output, PyTree, State, Task, Weights

STATISTICS = 9  # the stream of their passes, beside those of an upload's transforms


def without_statistics(task: Task) -> Task:
    """The task whose weights have no running statistics; `apply` only has a training mode."""

    def init(key):
        return task.init(key)._replace(stats={})

    def apply(w, *args):
        return task.apply(w, *args)._replace(stats={})

    return task._replace(init=init, apply=apply)


Model = Callable[..., tuple[Callable[..., Output], Weights]]
# ((W, state), rho, id of a client) -> `Task.apply` and the weights of its part of capacity rho


def with_statistics(
    method: Method, task: Task, model: Model, rate: Callable[[Client], Array]
) -> Method:
    """A method of `without_statistics(task)`, whose server is (W, state), with statistics in W.

    They have a leading axis of levels. rate: client -> rho.
    """
    needs.check(task, "batch_norms", what="config.method.static_norm=True: ")
    training, levels = method.round[0], np.array(sorted({*task.levels, 1.0}), np.float32)

    def init(key, num_clients):
        (w, state), private = method.init(key, num_clients)
        stats = tree.repeat(task.init(key).stats, len(levels))
        return State((w._replace(stats=stats), state), private)

    def aggregate(server, uploads, cohort):
        w, state = training.aggregate(send(server, None), uploads, cohort)
        return w._replace(stats=server[0].stats), state

    def predict(message, client, x):
        level = jnp.argmin(jnp.abs(levels - rate(client)))
        return method.predict(select_level(message, level), client, x)

    return method._replace(
        init=init,
        round=(training._replace(send=send, aggregate=aggregate), collecting(model, levels)),
        predict=predict,
        scored=lambda server, id: server,
    ).having(model=lambda message, private: select_level(message, -1)[0])


def send(server: tuple[Weights, PyTree], id: Any) -> tuple[Weights, PyTree]:
    """(W without statistics, state)."""
    w, state = server
    return w._replace(stats={}), state


def select_level(server: tuple[Weights, PyTree], level: Array | int) -> tuple[Weights, PyTree]:
    """(W with the statistics of one level, state)."""
    w, state = server
    return w._replace(stats=tree.take(w.stats, level)), state


def collecting(model: Model, levels: np.ndarray) -> Exchange:
    """The exchange after training."""

    def measure(message, client, work):
        key = streams.extra(work.upload_key(), STATISTICS)

        def rate_statistics(batch, rho):
            apply, w = model(message, rho, client.id)
            return batch_statistics(apply, w, batch.x, key, batch.mask)

        s = work.mean(lambda batch: jax.lax.map(partial(rate_statistics, batch), levels))
        return s, client.private

    def keep(server, s, cohort):
        w, state = server
        share = cohort.n / jnp.maximum(jnp.sum(cohort.n), 1)
        return w._replace(stats=tree.mix(share, s)), state

    return Exchange(send, measure, keep, wire.all_kept)


def batch_statistics(apply: Callable[..., Output], w: Weights, *args) -> PyTree:
    """The statistics of a batch, instead of running ones; args: of `Task.apply`, with a key."""

    def forgetful(layer, call, args, kwargs):
        if layer.method != "__call__" or not isinstance(layer.module, batch_norms()):
            return call(*args, **kwargs)
        with calls.field(layer.module, "momentum", 0.0):
            return call(*args, **kwargs)

    with calls.intercepted(forgetful):
        return apply(w._replace(stats={}), *args).stats
