"""Private state of clients that a transform keeps in addition to that of the method."""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from fedjax_lab.transforms import lens
from fedjax_lab.transforms.lens import Lens
from fedjax_lab.types import Method, PyTree, Stage, State

Begin = Callable[[State, int], PyTree]  # (first state of the method, C) -> leaves [C, ...]


class Beside(NamedTuple):
    """The private state of one client or of all clients, under a transform with its own state."""

    private: PyTree  # the method's
    extra: PyTree  # the transform's


def _with_part(state: Beside | None, part: PyTree) -> Beside:
    return Beside(part, () if state is None else state.extra)


METHODS = Lens(attrgetter("private"), _with_part)  # the part of the method


def wrapped(method: Method, begin: Begin) -> Method:
    """The method whose clients keep a `Beside` as their private state.

    The exchanges are not wrapped: they get the `Beside` itself.

    begin: (first state of the method, C) -> the transform's first state of all clients.
    """

    def init(key, num_clients):
        state = method.init(key, num_clients)
        return state._replace(private=Beside(state.private, begin(state, num_clients)))

    inner = lens.lifted(method, private=METHODS)
    return inner._replace(init=method.init and init, round=method.round)


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
