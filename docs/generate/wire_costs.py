"""Computes the bytes that each method of one stage sends, without training anything."""

import jax
import jax.numpy as jnp
import numpy as np
from method_pages import Cost, Sent

from fedjax_lab import tree, wire
from fedjax_lab.engine.parallel import vectorized
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import registry
from fedjax_lab.models import nets
from fedjax_lab.models.embeddings import Embeddings
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import outline, simulate
from fedjax_lab.simulation.population import make_population
from fedjax_lab.testing.toy import (
    RANK,
    C,
    adapted,
    make_federation,
    needs_adapters,
    toy_method,
)
from fedjax_lab.testing.trial import pooled
from fedjax_lab.types import Method

SHAPE, K = (28, 28, 1), 10
SETTING = (
    f"`mcmahan_cnn` on images of 28x28 pixels, {K} classes and {C} clients (with low-rank factors"
    f" of rank {RANK} in place of its dense layer, for methods that need adapters)"
)


def costs() -> dict[str, Cost]:
    """{method: bytes of one client in one round, as multiples of the model's bytes}."""
    task = make_task(nets.mcmahan_cnn(K), SHAPE, K)
    task = task._replace(embeddings=lambda: Embeddings(np.zeros((1, 32)), np.eye(K, 32)))
    methods = {name: toy_method(name, task) for name in registry.METHODS}
    plain = {name: method for name, method in methods.items() if isinstance(method, Method)}
    models = {name: adapted(task) if needs_adapters(name) else task for name in plain}
    return {name: _cost(method, models[name]) for name, method in plain.items()}


def _cost(method, task):
    if method.extra.pooled:
        return Cost(0, 0)
    model = tree.num_bytes(jax.eval_shape(task.init, jax.random.key(0)))
    toy = make_federation()
    size = SHAPE[0] * SHAPE[1] * SHAPE[2]
    images, (x, y) = jnp.zeros((len(toy.x), size)), toy.public
    toy = toy._replace(x=images, public=(jnp.zeros((len(x), size)), y))
    federation, _, plan = pooled(method, toy)
    population = make_population(federation, K)
    sent: list[Sent] = []
    method = method._replace(round=tuple(_listed(each, sent) for each in method.round))
    program = simulate.Program(method, plan._replace(example_shape=SHAPE), vectorized())
    program, _, _ = outline.first_round(program, federation, population)
    up, down = program.message_bytes
    return Cost(up / model, down / model, tuple(sent))


def _listed(exchange, sent):
    """The exchange, which adds what its clients upload to a list when it is traced."""

    def local(message, client, work):
        upload, private = exchange.local(message, client, work)
        leaves = tree.by_name(upload)
        try:
            marks = jax.tree.leaves(wire.references(exchange, message, client.id, upload))
        except BadInput:
            marks = [wire.ITSELF] * len(leaves)
        parts: dict[tuple[str, bool], list[int]] = {}
        for (name, leaf), mark in zip(leaves.items(), marks, strict=True):
            is_change = not isinstance(mark, wire.Leaf)
            parts.setdefault((name.split("/")[0], is_change), []).append(leaf.size)
        sent.extend(Sent(name, len(n), sum(n), of) for (name, of), n in parts.items())
        return upload, private

    return exchange._replace(local=local)
