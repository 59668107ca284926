"""The shapes of the clients' uploads, determined before there are any data."""

from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import tree, wire
from fedjax_lab.simulation import by_kind
from fedjax_lab.types import (
    Array,
    Batch,
    Client,
    Exchange,
    Method,
    NoCounts,
    PyTree,
    State,
    Task,
    Work,
)

MANY = 1 << 20  # public examples of a stand-in, more than a method uses


def updates(method: Method, task: Task, state: State, num_clients: int) -> list[PyTree]:
    """Returns the shapes of a client's updates in each exchange of a round (`wire.updates`).

    Nothing is computed: a round is traced with stand-ins for a client and its work. Raises BadInput
    if an exchange does not say what its uploads are updates of.
    """

    def play(state):
        server, private = state.server, by_kind.first_kind(tree.take(state.private, 0))
        sent = []
        for exchange in method.round:
            who = client(task, private)
            message = exchange.send(server, who.id)
            upload, private = exchange.local(message, who, stand_in(task))
            references = wire.references(exchange, message, who.id, upload)
            sent.append(wire.updates(references, upload))
            if exchange is not method.round[-1]:
                server = _learned(exchange, server, upload, who, num_clients)
        return sent

    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), state)
    return jax.eval_shape(play, shapes)


def _learned(exchange: Exchange, server, upload, client, num_clients):
    """The server's state after an exchange in which all clients have sent the same upload."""
    uploads, cohort = tree.repeat((upload, client._replace(private=())), num_clients)
    keys = tree.repeat(jax.random.key(0), num_clients)
    arrived = jnp.ones(num_clients, bool)
    cohort = cohort._replace(arrived=arrived, key=keys, staleness=jnp.zeros(num_clients))
    return exchange.aggregate(server, uploads, cohort)


def client(task: Task, private: PyTree) -> Client:
    """A stand-in for a client with one example."""
    one = jnp.ones(())
    return Client(
        id=jnp.int32(0),
        n=one,
        weight=one,
        label_count=jnp.ones(task.num_classes) if task.objective.has_classes else NoCounts(),
        private=private,
        num_clients=one,
        mean_n=one,
    )


def stand_in(task: Task) -> Work:
    """The `Work` of a client with one example, whose training returns the weights unchanged."""

    def draw(size: int) -> Batch:
        x = jnp.zeros((size, *task.input_shape))
        label = task.objective.label
        return Batch(x, jnp.zeros((size, *label.shape), label.dtype), jnp.ones(size))

    def train(weights: PyTree, loss: Callable, **options) -> PyTree:
        return weights

    def mean(fn: Callable[[Batch], PyTree], when: Array | bool = True, rows: str = "") -> PyTree:
        return fn(draw(1))

    def outputs(fn: Callable[[Batch], PyTree], rows: str = "") -> tuple[PyTree, Array]:
        return fn(draw(1)), jnp.ones(1)

    def upload_key() -> Array:
        return jax.random.key(0)

    def public_outputs(fn: Callable[[Batch], PyTree], places: Array) -> PyTree:
        return fn(draw(len(places)))

    public = SimpleNamespace(
        size=MANY, outputs=public_outputs, batch=lambda places: draw(len(places))
    )
    return Work(
        train,
        mean,
        draw,
        jnp.int32(1),
        optax.sgd(1.0),
        upload_key=upload_key,
        outputs=outputs,
        public=public,
        switch=lambda index, branches: branches[0](),
    )
