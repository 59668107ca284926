"""Private state of clients that a transform keeps in addition to that of the method."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_lab.types import Method, PyTree, Stage, State

Begin = Callable[[State, int], PyTree]  # (first state of the method, C) -> leaves [C, ...]


class Beside(NamedTuple):
    """The private state of one client or of all clients, under a transform with its own state."""

    private: PyTree  # the method's
    extra: PyTree  # the transform's


def wrapped(method: Method, begin: Begin) -> Method:
    """The method whose clients keep a `Beside` as their private state.

    The exchanges are not wrapped: they get the `Beside` itself.

    begin: (first state of the method, C) -> the transform's first state of all clients.
    """

    def init(key, num_clients):
        state = method.init(key, num_clients)
        return state._replace(private=Beside(state.private, begin(state, num_clients)))

    functions: dict[str, Any] = {
        "init": init,
        **_client_functions(method),
        **_state_functions(method),
    }
    defined = {name: f for name, f in functions.items() if getattr(method, name) is not None}
    return method._replace(**defined)


def _client_functions(method):
    """The wrapped functions of a method that take a client."""

    def predict(message, client, x):
        return method.predict(message, _inner(client), x)

    def tune(message, client, work):
        message, private = method.tune(message, _inner(client), work)
        return message, Beside(private, client.private.extra)

    def join(server, client, work):
        message, private = method.join(server, client, work)
        return message, Beside(private, ())

    return {"predict": predict, "tune": tune, "join": join}


def _state_functions(method):
    """The wrapped functions of a method that take a state."""

    def newcomer(state):
        message, private = method.newcomer(_inner(state))
        return message, Beside(private, ())

    def record(state):
        return method.record(_inner(state))

    return {"newcomer": newcomer, "record": record}


def plain(private: PyTree) -> PyTree:
    """Returns the method's private state without the states of transforms."""
    while isinstance(private, Beside):
        private = private.private
    return private


def with_plain(private: PyTree, new: PyTree) -> PyTree:
    """Replaces the method's private state by `new`; the states of transforms stay the same."""
    if not isinstance(private, Beside):
        return new
    return private._replace(private=with_plain(private.private, new))


def in_stage(stage: Stage, transform: Callable[[Method], Method]) -> Stage:
    """Transforms the method of a stage, also of one that starts from another stage's state."""
    method, before = transform(stage.method), stage

    def last_of(state):
        return state and state._replace(private=plain(state.private))

    def start(key, num_clients, last, facts):
        def begin(key, num_clients):
            return before.start(key, num_clients, last_of(last), facts)

        return transform(before.method._replace(init=begin)).init(key, num_clients)

    def prepare(key, population, last):
        return before.prepare(key, population, last_of(last))

    return stage._replace(
        method=method, start=stage.start and start, prepare=stage.prepare and prepare
    )


def _inner(holder):
    """A client or a state with the private state of the method alone."""
    return holder._replace(private=holder.private.private)
