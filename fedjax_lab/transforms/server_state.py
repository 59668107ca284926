"""State of the server that a transform keeps in addition to that of the method."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from fedjax_lab.errors import BadInput
from fedjax_lab.transforms.cohort import Changed
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
    init = method.init
    if init is None:
        raise BadInput("it starts from the state of an earlier stage, which is not supported here")

    def started(key, num_clients):
        state = init(key, num_clients)
        return State(Server(state.server, first(key)), state.private)

    def base_state(state):
        return State(state.server.base, state.private)

    def record(state):
        of_method = method.record(base_state(state)) if method.record else {}
        return {**of_method, **(recorded(state.server.extra) if recorded else {})}

    newcomer, join, scored = method.newcomer, method.join, method.scored
    alone = method.extra.alone
    return method._replace(
        init=started,
        round=tuple(_with_state(exchange, listen) for exchange in method.round),
        newcomer=newcomer and (lambda state: newcomer(base_state(state))),
        join=join and (lambda server, client, work: join(server.base, client, work)),
        sample=lambda key, server, *more: method.sample(key, server.base, *more),
        scored=scored and (lambda server, id: scored(server.base, id)),
        record=record if recorded or method.record else None,
    ).having(
        alone=alone and (lambda server, split: server._replace(base=alone(server.base, split)))
    )


def _with_state(exchange: Exchange, listen: Listen) -> Exchange:
    before = exchange.aggregate
    if isinstance(before, Changed):
        inner = _with_state(before.exchange, listen)
        return exchange._replace(send=inner.send, aggregate=replace(before, exchange=inner))
    return exchange._replace(
        send=lambda server, id: exchange.send(server.base, id),
        aggregate=lambda server, uploads, cohort: listen(exchange, server, uploads, cohort),
    )
