"""State of the server that a transform keeps in addition to that of the method."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedjax_lab.simulation import needs
from fedjax_lab.transforms import cohort, lens
from fedjax_lab.transforms.cohort import Changed, Updates
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree, State


class Server(NamedTuple):
    """The server's state of the method and of the transform."""

    base: PyTree
    extra: PyTree


Listen = Callable[[Exchange, Server, PyTree, Client], Server]


def with_state(
    method: Method,
    first: Callable[[Array], PyTree],
    listen: Listen,
    recorded: Callable[[PyTree], dict[str, Array]] | None = None,
) -> Method:
    """The method whose server is a `Server`.

    Args:
      method: the method to wrap.
      first: the key of `Method.init` -> the transform's first state.
      listen: (the method's exchange, server, uploads, cohort) -> server; replaces `aggregate`.
        Changes of the updates by transforms that were applied before come first.
      recorded: the transform's state -> the values that each row of metrics records of it, in
        addition to those of the method (`Method.record`).

    Raises BadInput for a method that starts from the state of an earlier stage.
    """
    needs.check(method, "first_state")
    init: Any = method.init

    def started(key, num_clients):
        state = init(key, num_clients)
        return State(Server(state.server, first(key)), state.private)

    inner = lens.lifted(method, server=lens.field("base"))

    def record(state):
        of_method = inner.record(state) if inner.record else {}
        return {**of_method, **(recorded(state.server.extra) if recorded else {})}

    return inner._replace(
        init=started,
        round=tuple(_with_state(exchange, listen) for exchange in method.round),
        record=record if recorded or method.record else None,
    )


def with_changes(
    method: Method,
    first: Callable[[State, int], PyTree],
    change: Callable[[PyTree, PyTree, Updates, Client], tuple[Updates, PyTree]],
    recorded: Callable[[PyTree], dict[str, Array]] | None = None,
) -> Method:
    """The method whose server changes all updates of a round, with a state.

    Args:
      method: the method to wrap.
      first: (first state of the method, C) -> the first state of the transform.
      change: (message to a client, state, updates [M, ...], cohort) -> (updates of the same shapes,
        state).
      recorded: as in `with_state`.

    Raises BadInput as `cohort.changed` and `with_state` do, and for a method that has several
    exchanges in a round.
    """
    needs.check(method, "all_at_once", "single_updates", "one_exchange")
    kept = with_state(method, lambda key: (), partial(_changed, change), recorded)

    def init(key, num_clients):
        state = kept.init(key, num_clients)
        base = state.server.base
        extra = first(State(base, state.private), num_clients)
        return state._replace(server=Server(base, extra))

    return kept._replace(init=init)


def _changed(change, exchange, server, uploads, clients):
    message = exchange.send(server.base, jnp.int32(0))
    one = partial(change, message, server.extra)
    uploads, extra = cohort.applied(exchange, one, server.base, uploads, clients)
    base = exchange.aggregate(server.base, uploads, clients)
    return Server(base, server.extra if extra is None else extra)


def _with_state(exchange: Exchange, listen: Listen) -> Exchange:
    before, changes = cohort.parts(exchange)
    heard = before._replace(
        send=lambda server, id: before.send(server.base, id), aggregate=partial(listen, before)
    )
    return exchange._replace(
        send=heard.send, aggregate=Changed(heard, changes) if changes else heard.aggregate
    )
