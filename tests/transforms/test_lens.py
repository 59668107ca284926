"""A lens on the states of a method: what its functions get, and where their results go."""

from typing import NamedTuple

import pytest

from fedjax_lab.simulation.contract import TAKES
from fedjax_lab.transforms import lens
from fedjax_lab.types import Exchange, Extra, Method, State


class Outer(NamedTuple):
    """A larger state of the server."""

    base: str
    other: str


class Client(NamedTuple):
    """A client as far as a lens sees it."""

    private: tuple | str


PRIVATE = lens.Lens(lambda pair: pair[0], lambda pair, part: (part, pair and pair[1]))
RESULTS = {
    "aggregate": "new server",
    **dict.fromkeys(("local", "tune", "join", "newcomer"), ("sent", "new private")),
}
OUTER = {"server": Outer("server", "index"), "client": Client(("private", "residual"))}
OUTER["state"] = State(OUTER["server"], OUTER["client"].private)
INNER = {"server": "server", "client": Client("private"), "state": State("server", "private")}


def spied(name, seen):
    """A function of a method, which writes down what it gets."""

    def function(*args):
        seen.update(zip(TAKES[name], args, strict=True))
        return RESULTS.get(name, "result")

    return function


def spied_method(seen):
    """A method with all functions that a method can have."""

    def part(kind):
        return kind(**{name: spied(name, seen) for name in TAKES if name in kind._fields})

    exchange = part(Exchange)
    fields = {name: spied(name, seen) for name in TAKES if name in Method._fields}
    return Method(**fields, round=(exchange,), extra=part(Extra))


def called(method, name):
    """The result of a function of the method, with outer states."""
    holders = (method, method.extra, *method.round)
    (function,) = (getattr(holder, name) for holder in holders if hasattr(holder, name))
    return function(*(OUTER.get(key, key) for key in TAKES[name]))


@pytest.mark.parametrize("name", [name for name in TAKES if name != "init"])
def test_a_function_gets_its_parts_and_they_are_put_back(name):
    seen = {}
    both = lens.lifted(spied_method(seen), server=lens.field("base"), private=PRIVATE)
    result = called(both, name)
    expected = {key: INNER.get(key, key) for key in TAKES[name]}
    if name == "join":
        expected["client"] = OUTER["client"]  # a new client has no private state
    assert seen == expected
    assert result == {
        "aggregate": Outer("new server", "index"),
        "local": ("sent", ("new private", "residual")),
        "tune": ("sent", ("new private", "residual")),
        "join": ("sent", ("new private", None)),
        "newcomer": ("sent", ("new private", None)),
    }.get(name, "result")


def test_a_new_client_joins_with_a_larger_state_where_only_clients_have_one():
    private = lens.lifted(spied_method({}), private=PRIVATE)
    assert called(private, "join") == ("sent", ("new private", None))


def test_functions_that_get_no_larger_state_stay_the_same():
    method = spied_method({})
    server = lens.lifted(method, server=lens.field("base"))
    private = lens.lifted(method, private=PRIVATE)
    assert server.init is private.init is method.init
    assert server.predict is method.predict and server.round[0].local is method.round[0].local
    assert private.sample is method.sample and private.round[0].send is method.round[0].send
    nothing = Method(None, (), None, None, method.sample)
    assert lens.lifted(nothing, private=PRIVATE) == nothing
