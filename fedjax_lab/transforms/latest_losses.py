"""The clients' latest losses, for samplings that use them (config.run.sampling)."""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from fedjax_lab import tree, wire
from fedjax_lab.simulation import needs
from fedjax_lab.transforms.server_state import Server, with_state
from fedjax_lab.types import Array, Method, PyTree, Task

NEVER = float(jnp.finfo(jnp.float32).max)  # of a client that has not taken part; a state is finite


class Heard(NamedTuple):
    """An upload with the client's loss."""

    upload: PyTree
    loss: Array


def are_seen(sample: Callable) -> bool:
    """Whether a sampling has an argument `losses`."""
    return "losses" in inspect.signature(sample).parameters


NEEDS = ("first_model",)


def sampled(method: Method, task: Task, sample: Callable) -> Method:
    """The method with a sampling that gets the latest loss of each client, [C], as `losses`.

    It is the mean over the client's training examples of the loss of the model with which it is
    scored, before it trains. The client adds it to its last upload of a round, and the server keeps
    it; a client that has not yet taken part has the loss `NEVER`.
    """
    needs.check(method, *NEEDS)
    predict, (*others, last) = method.predict, method.round
    assert predict is not None  # checked

    def local(message, client, work):
        def loss(batch):
            return task.loss(predict(message, client, batch.x), batch)

        return _with(last.local(message, client, work), work.mean(loss))

    def updates(message, id, heard):
        return Heard(wire.references(last, message, id, heard.upload), wire.KEPT)

    def listen(exchange, server, uploads, cohort):
        if not isinstance(uploads, Heard):
            return server._replace(base=exchange.aggregate(server.base, uploads, cohort))
        losses = tree.put(server.extra, cohort.id, jnp.clip(uploads.loss, max=NEVER))
        return Server(exchange.aggregate(server.base, uploads.upload, cohort), losses)

    def started(key, num_clients):
        state = kept.init(key, num_clients)
        return state._replace(server=state.server._replace(extra=jnp.full(num_clients, NEVER)))

    def informed(key, server, population, m):
        return sample(key, server.base, population, m, losses=server.extra)

    informed.__module__ = sample.__module__  # for sampling.is_own
    round = (*others, last._replace(local=local, updates=updates))
    kept = with_state(method._replace(round=round), lambda key: (), listen)
    return kept._replace(init=started, sample=informed)


def _with(result, loss):
    upload, private = result
    return Heard(upload, loss), private
