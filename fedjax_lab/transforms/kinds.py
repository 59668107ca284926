"""A method for clients with unlike models, made of the method for each of these models.

A client does what the method for its own kind of model does, and keeps the private state of this
method: `simulation.by_kind` deals clients by kind, so that the kind of a client is a static number.

The server is that of the first kind. What it keeps and sends must have the same shapes for all
kinds; so must what clients upload.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation import needs
from fedjax_lab.simulation.by_kind import EachKind, OfKind
from fedjax_lab.transforms import rehearsal
from fedjax_lab.types import Method, PyTree, Stages, State, Task

NEEDS = ("one_stage", "no_turns")
REMEDY = (
    "choose a method that sends only what all models have in common"
    " (docs/unlike_clients.md#unlike-nets lists them)"
)


class Shapes(NamedTuple):
    """The shapes of what a method's server and clients send each other."""

    messages: list[PyTree]  # of each exchange
    uploads: list[PyTree]
    scored: PyTree  # the message with which a client predicts


def mixed_method(make: Callable[[Task], Method | Stages], task: Task) -> Method | Stages:
    """The method for all kinds of models of the task; make: task -> the method for its model.

    Raises BadInput if the method does not meet NEEDS, or sends what depends on the kind.
    """
    if not task.kinds:
        return make(task)
    tasks = [
        kind._replace(embeddings=task.embeddings, levels=task.levels, kinds=task.kinds)
        for kind in task.kinds
    ]
    made = list(map(make, tasks))
    needs.check(made[0], *NEEDS, what="config.model.kinds: ", remedy=f"; {REMEDY}")
    methods = [method for method in made if isinstance(method, Method)]
    _check_alike([jax.eval_shape(partial(_first, method)).server for method in methods])
    shapes = [_shapes(*each) for each in zip(methods, tasks, strict=True)]
    _check_alike(shapes)
    return joined(methods, shapes)


def _check_alike(trees: Sequence[PyTree]) -> None:
    first, *others = map(jax.tree.leaves_with_path, trees)
    if any(other != first for other in others):
        reason = "it sends arrays whose shapes differ between these models"
        raise BadInput(f"config.model.kinds: {reason}; {REMEDY}")


def joined(methods: Sequence[Method], shapes: Sequence[Shapes]) -> Method:
    """The method in which a client of kind k acts by methods[k].

    It has no model for new clients, and records nothing.
    """
    first, tunes = methods[0], [method.tune for method in methods if method.tune]
    scored = [each.scored for each in shapes]

    def init(key, num_clients):
        states = [method.init(key, num_clients) for method in methods if method.init]
        return State(states[0].server, EachKind(tuple(state.private for state in states)))

    def predict(message, client, x):
        k, of_kind = client.private.kind, client._replace(private=client.private.state)
        return methods[k].predict(_like(scored[k], message), of_kind, x)

    def local(i):
        messages = [each.messages[i] for each in shapes]
        return _by_kind([m.round[i].local for m in methods], messages, shapes[0].uploads[i])

    return first._replace(
        init=init,
        round=tuple(e._replace(local=local(i)) for i, e in enumerate(first.round)),
        predict=predict,
        newcomer=None,
        join=None,
        record=None,
        tune=_by_kind(tunes, scored, scored[0]) if tunes else None,
        extra=first.extra._replace(model=None),
    )


def _by_kind(
    functions: Sequence[Callable], messages: Sequence[PyTree], returned: PyTree
) -> Callable:
    """A function of (message, client, work) that calls the one for the client's kind.

    messages: the trees that each function gets; returned: the tree that all of them return. Trees
    of other kinds have the same arrays, but may have None in other places.
    """

    def run(message, client, work):
        k, of_kind = client.private.kind, client._replace(private=client.private.state)
        value, private = functions[k](_like(messages[k], message), of_kind, work)
        return _like(returned, value), OfKind(private, k)

    return run


def _like(shapes: PyTree, arrays: PyTree) -> PyTree:
    """Puts the arrays into the tree structure of `shapes`."""
    return jax.tree.unflatten(jax.tree.structure(shapes), jax.tree.leaves(arrays))


def _first(method: Method) -> State:
    init: Any = method.init
    return init(jax.random.key(0), 2)


def _shapes(method: Method, task: Task) -> Shapes:
    """The shapes of a method; a round of one client is traced with stand-ins."""

    def trace():
        server, private = _first(method)
        private, messages, uploads = tree.take(private, 0), [], []
        for exchange in method.round:
            client = rehearsal.client(task, private)
            messages.append(exchange.send(server, client.id))
            upload, private = exchange.local(messages[-1], client, rehearsal.stand_in(task))
            uploads.append(upload)
        scored = method.sends_scored(server, client.id)
        return Shapes(messages, uploads, scored)

    return jax.eval_shape(trace)
