"""A method whose states are parts of larger ones, which a transform or another method keeps."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from fedjax_lab.simulation.contract import TAKES
from fedjax_lab.types import Method, PyTree, State


class Lens(NamedTuple):
    """How a part of a state is read and replaced."""

    get: Callable[[PyTree], PyTree]  # state -> part
    put: Callable[[PyTree, PyTree], PyTree]
    # (state, part) -> state; the state is None for the first private state of a new client


def field(name: str) -> Lens:
    """The part that is a field of a NamedTuple."""
    return Lens(attrgetter(name), lambda state, part: state._replace(**{name: part}))


SAME = Lens(lambda state: state, lambda state, part: part)  # the part is the whole state


def lifted(method: Method, server: Lens = SAME, private: Lens = SAME) -> Method:
    """The method whose functions read and replace parts of the states that they get.

    Its `init` still makes the parts alone, and its `Extra.model` still gets them.

    server: the part of the server's state that is the method's.
    private: the part of a client's private state that is the method's.
    """

    def lift(functions):
        defined = {
            name: _lifted(name, function, server, private)
            for name, function in functions._asdict().items()
            if function is not None and name in TAKES
        }
        return functions._replace(**defined)

    return lift(method)._replace(extra=lift(method.extra), round=tuple(map(lift, method.round)))


def _lifted(name: str, function: Callable, server: Lens, private: Lens) -> Callable:
    """The function `name` of a method for the larger states; as it is if it has none of them."""
    read: dict[str, Callable[[Any], Any]] = {
        "server": server.get,
        "state": lambda state: State(server.get(state.server), private.get(state.private)),
        "client": lambda client: client._replace(private=private.get(client.private)),
    }
    if server is SAME:
        del read["server"]
    if private is SAME:
        del read["client"]
    elif name == "join":  # a new client has no private state, but gets one
        read["client"] = SAME.get
    if not read.keys() & {*TAKES[name]} or name == "init":
        return function

    def call(*args):
        given = dict(zip(TAKES[name], args, strict=True))
        result = function(*(read.get(key, SAME.get)(value) for key, value in given.items()))
        if name == "aggregate":
            return server.put(given["server"], result)
        if name in ("local", "tune", "join", "newcomer"):
            sent, part = result
            before = given["client"].private if name in ("local", "tune") else None
            return sent, private.put(before, part)
        return result

    return call
