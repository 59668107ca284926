"""What reaches the server in a round, and what an attacker can compute of it.

`observe` plays a round of the run with its transforms, and keeps what the method's own `aggregate`
gets: decoded uploads or, where the server only learns one update of the whole cohort, such as a
secure or a noisy sum, that update. `make_sender` returns what a client would send for other
examples, by the method's own `Exchange.local` without the transforms: an attacker knows how an
upload was changed on its way, and compares it with one that was not.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import streams, tree, wire
from fedjax_lab.auditing.target import Target
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation import needs, simulate
from fedjax_lab.simulation.client_work import WorkRows, make_work
from fedjax_lab.simulation.population import population_on_host
from fedjax_lab.simulation.simulate import Lane
from fedjax_lab.transforms import private_state
from fedjax_lab.types import (
    Array,
    Client,
    Exchange,
    Failures,
    Federation,
    NoCounts,
    PyTree,
    Rows,
)

Knowledge = Literal["labels", "order", "keys", "statistics", "private"]


class Observed(NamedTuple):
    """What the server learned in the first exchange of a round, and from whom."""

    server: PyTree  # the method's server before
    names: list[str]  # of the arrays, as in the upload
    sent: list[Array]  # [M, ...] each; [1, ...] if it is one update of all clients
    is_sum: bool
    clients: Client  # [M], with private state and examples as in the round
    keys: Array  # [M], their random streams
    x: Array  # [M, N, D] their examples, which the attacker looks for
    y: Array  # [M, N, *label]


def observe(target: Target, examples: int, knows: Collection[Knowledge]) -> Observed:
    """What the server learns in the next round, if clients have so many examples each.

    examples: as in `first_examples`. Raises BadInput if nothing reaches the server, or if it gets
    the uploads one after another.
    """
    _check(target, knows)
    federation = first_examples(target, examples)
    people = population_on_host(federation, target.task.objective.num_classes)
    lane = Lane(federation, jax.tree.map(jnp.asarray, people), target.keys)
    names: list[str] = []
    server, sent, clients, keys = _make_round(target, lane, knows, names)(target.state)
    drawn = np.flatnonzero(np.asarray(clients.weight) > 0)
    is_sum = len(sent[0]) > 1 and all(bool(jnp.all(a == a[:1])) for a in sent)
    is_sum = is_sum or target.stage.method.extra.private_sum
    sent = [a[:1] for a in sent] if is_sum else [a[drawn] for a in sent]
    clients, keys = jax.tree.map(lambda a: a[drawn], (clients, keys))
    rows = federation.train[np.asarray(clients.id)]
    x, y = federation.x[rows].astype(jnp.float32), federation.y[rows]
    return Observed(server, names, sent, is_sum, clients, keys, x, y)


def _make_round(target, lane, knows, names):
    """The function state -> (server, what it learns, clients, their streams) of the next round.

    The list gets the names of the arrays that the server learns.
    """
    exchange, *others = target.plain.round
    seen: list[PyTree] = []

    def aggregate(server, uploads, cohort):
        def arrays(id, upload):
            message = exchange.send(server, id)
            named = sent_by(exchange, message, id, upload, "statistics" in knows)
            names[:] = named
            return [*named.values()]

        seen.append((server, jax.vmap(arrays)(cohort.id, uploads)))
        return exchange.aggregate(server, uploads, cohort)

    spied = target.plain._replace(round=(exchange._replace(aggregate=aggregate), *others))
    plan = _plan(target, lane.federation.train.longest)
    program = target.program(target.transformed(spied), plan)

    def play(state):
        t = jnp.int32(target.round)
        ids, shares = simulate.draw(program, lane, state.server, t)
        simulate.play_round(program, lane, state, t)
        keys = streams.exchange(streams.clients(lane.keys.local, t, ids), len(others))
        private = tree.take(private_state.plain(state.private), ids)
        clients = tree.take(lane.population, ids)._replace(weight=shares, private=private)
        return *seen[-1], clients, keys

    return jax.jit(play)


def _plan(target, examples):
    """The plan of a round in which each client has so many examples, and nothing is lost."""
    size = min(target.plan.batch_size, examples)
    return target.plan._replace(batch_size=size, equal_steps=True, failures=Failures())


def _check(target, knows):
    """Raises BadInput for a method without uploads, or knowledge of what the run does not have."""
    name = target.run.config.method.name
    if target.task.kinds:
        raise BadInput(
            "clients have unlike models (config.model.kinds); audit a run with one model"
        )
    needs.check(target.plain, "clients", "all_at_once")
    if target.run.config.downlink.name != "none":
        raise BadInput("messages are compressed; audit a run with --config.downlink.name=none")
    stats = jax.eval_shape(target.task.init, jax.random.key(0)).stats
    if "statistics" in knows and not jax.tree.leaves(stats):
        raise BadInput("attack.knows: the model has no running statistics; drop `statistics`")
    if "private" in knows and not jax.tree.leaves(private_state.plain(target.state.private)):
        raise BadInput(f"attack.knows: clients of {name} keep no private state; drop `private`")


def first_examples(target: Target, examples: int) -> Federation:
    """The federation whose clients have only their first examples, equally many of each.

    examples: the most of a client; 0, and at most: as many as the client with the fewest has.
    """
    train = target.federation.train
    least = max(int(jnp.min(train.count)), 1)
    number = min(examples or least, least)
    rows = Rows(train.start, jnp.minimum(train.count, number), train.list, number)
    return target.federation._replace(train=rows)


def is_text(target: Target) -> bool:
    """Whether the examples are token ids, which the model embeds."""
    return "vocabulary" in target.run.config.model


def sent_by(
    exchange: Exchange, message: PyTree, id: Array, upload: PyTree, with_kept: bool
) -> dict[str, Array]:
    """The arrays that an upload tells, by name: updates, and itself where it is none.

    with_kept: whether running statistics and counts are among them; they are if there is no other
    array. Raises BadInput if clients upload nothing.
    """
    leaves = tree.by_name(upload)
    if not leaves:
        raise BadInput("its clients upload nothing")
    try:
        marks = jax.tree.leaves(wire.references(exchange, message, id, upload))
    except BadInput:
        marks = [wire.ITSELF] * len(leaves)
    kept = {
        name: leaf if isinstance(mark, wire.Leaf) else leaf - mark
        for (name, leaf), mark in zip(leaves.items(), marks, strict=True)
        if jnp.issubdtype(leaf.dtype, jnp.floating) and (with_kept or mark is not wire.KEPT)
    }
    if kept or with_kept:
        return kept
    return sent_by(exchange, message, id, upload, True)


def make_sender(
    target: Target, number: int, knows: Collection[Knowledge]
) -> Callable[[PyTree, Client, Array, Array, Array], list[Array]]:
    """The function (server, client, its stream, x [N, D], y [N, *label]) -> what it sends.

    number: N, the examples of a client.
    """
    exchange, federation = target.plain.round[0], target.federation
    plan = _plan(target, number)._replace(
        feature_skew=None, augment=target.plan.augment if "keys" in knows else None
    )
    examples = jnp.arange(number)
    rows = WorkRows(examples, examples if target.plain.validation else None)

    def send(server, client, key, x, y):
        pool = federation._replace(x=x, y=y, domain=jnp.zeros(number, jnp.int32), traits={})
        message = exchange.send(server, client.id)
        settings = client.traits.get("settings")
        work, _ = make_work(pool, rows.train, plan, key, None, rows.validation, settings)
        if "order" in knows and "keys" not in knows:
            work = work._replace(train=_with_own_draws(work.train))
        upload, _ = exchange.local(message, _with_counts(client, y), work)
        named = sent_by(exchange, message, client.id, upload, "statistics" in knows)
        return [*named.values()]

    return send


def guessed(target: Target, observed: Observed, knows: Collection[Knowledge], key: Array):
    """The clients [M] and their streams as the attacker imagines them."""
    clients, keys = observed.clients, observed.keys
    if not {"order", "keys"} & {*knows}:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, clients.id)
    if "private" not in knows and target.plain.init is not None:
        first = target.plain.init(key, len(target.federation.train)).private
        clients = clients._replace(private=tree.take(first, clients.id))
    return clients, keys


def _with_own_draws(train):
    """The training in the order of the client's stream, with other random numbers in its steps."""

    def run(weights, loss, **options):
        def with_other_key(weights, batch, key):
            return loss(weights, batch, streams.extra(key, streams.STAGE))

        return train(weights, with_other_key, **options)

    return run


def _with_counts(client, y):
    """The client with the numbers of its labels."""
    if isinstance(client.label_count, NoCounts):
        return client
    classes = client.label_count.shape[-1]
    return client._replace(label_count=jnp.sum(jax.nn.one_hot(y, classes), 0))


@contextlib.contextmanager
def naming(target: Target) -> Iterator[None]:
    """Prepends the method to the message of a BadInput whose subject is `it`."""
    try:
        yield
    except BadInput as error:
        if not str(error).startswith(("its ", "it ")):
            raise
        name = target.run.config.method.name
        raise BadInput(f"method {name} cannot be attacked: {error}") from error


def remarks(
    target: Target, observed: Observed, examples: int, knows: Collection[Knowledge]
) -> Iterator[str]:
    """What was assumed about the clients and the attacker."""
    number, held = observed.x.shape[1], int(np.max(np.asarray(target.federation.train.count)))
    if held > number:
        least = " (as many as the smallest client has)" if number != examples else ""
        yield (
            f"each client trains with its first {number} examples{least} of up to {held}; an attack"
            " on more of them is harder (attack.examples)"
        )
    yield f"the attacker knows {', '.join(['what every server knows', *knows])}"
