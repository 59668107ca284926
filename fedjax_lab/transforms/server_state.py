"""A state of a transform's own, beside the method's in the server's."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from fedjax_lab.errors import BadInput
from fedjax_lab.transforms.cohort import Changed
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree, State


class Server(NamedTuple):
    """The method's server, and what the transform keeps there."""

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
      method: the one that is wrapped.
      first: the key of `Method.init` -> the transform's first state.
      listen: (the method's exchange, server, uploads, cohort) -> server; in the place of
        `aggregate`. Changes of the updates by transforms that were wrapped before come first.
      recorded: the transform's state -> what each row of metrics keeps of it, beside what the
        method keeps (`Method.record`).

    BadInput for a method that does not make its own first state.
    """
    init = method.init
    if init is None:
        raise BadInput("it starts from the state of an earlier stage")

    def started(key, num_clients):
        state = init(key, num_clients)
        return State(Server(state.server, first(key)), state.private)

    def of_base(state):
        return State(state.server.base, state.private)

    def record(state):
        of_method = method.record(of_base(state)) if method.record else {}
        return {**of_method, **(recorded(state.server.extra) if recorded else {})}

    newcomer, join, scored = method.newcomer, method.join, method.scored
    return method._replace(
        init=started,
        round=tuple(_with_state(exchange, listen) for exchange in method.round),
        newcomer=newcomer and (lambda state: newcomer(of_base(state))),
        join=join and (lambda server, client, work: join(server.base, client, work)),
        sample=lambda key, server, *more: method.sample(key, server.base, *more),
        scored=scored and (lambda server, id: scored(server.base, id)),
        record=record if recorded or method.record else None,
    )


def _with_state(exchange: Exchange, listen: Listen) -> Exchange:
    before, alone = exchange.aggregate, exchange.alone
    if isinstance(before, Changed):
        inner = _with_state(before.exchange, listen)
        return exchange._replace(
            send=inner.send, aggregate=replace(before, exchange=inner), alone=inner.alone
        )
    return exchange._replace(
        send=lambda server, id: exchange.send(server.base, id),
        aggregate=lambda server, uploads, cohort: listen(exchange, server, uploads, cohort),
        alone=alone and (lambda server, split: server._replace(base=alone(server.base, split))),
    )
