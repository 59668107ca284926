"""Rounds of federated training as pure functions, independent of methods and devices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import streams, tree
from fedjax_lab.simulation import asynchronous, contract, failures
from fedjax_lab.simulation.asynchronous import Schedule, Virtual
from fedjax_lab.simulation.local import (
    Public,
    batch_size,
    client_federation,
    fetch,
    make_work,
    num_batches,
    work_rows,
)
from fedjax_lab.simulation.strategies import Strategy
from fedjax_lab.streams import Keys
from fedjax_lab.types import (
    Array,
    Client,
    Federation,
    Method,
    NoCounts,
    Plan,
    PyTree,
    Rows,
    State,
)

PIECE = 1 << 16  # clients whose labels are counted at a time
AGGREGATED = "the last `aggregate` of a method's round must return the server's state"


class Program(NamedTuple):
    """The program of a run: a method, its sizes, and how its clients share the devices."""

    method: Method
    plan: Plan
    strategy: Strategy
    scheduled: Callable[[Array], tuple[Method, dict[str, Any]]] | None = None
    # round -> (method, fields of the plan), if a learning rate depends on the round


class Lane(NamedTuple):
    """The inputs of a program for one seed: its clients and its random numbers.

    If only some clients take part, the federation and the state may contain the rows and the
    private state of only these clients: `held` lists their ids.
    """

    federation: Federation
    population: Client  # [C], without private state
    keys: Keys
    held: Array | None = None  # [U] int32, ascending; None: all clients
    new: Client | None = None  # [N] the new clients, which are only scored; None: there are none
    schedule: Schedule | None = None  # of an asynchronous run; None: rounds are synchronous


class Progress(NamedTuple):
    """Sums over the rounds since the last evaluation."""

    train_loss: Array
    examples: Array  # training examples that were processed
    steps: Array  # training steps of the clients
    lane_steps: Array  # executed steps, including masked ones
    diverged: Array  # the first round with a non-finite number, or -1
    arrived: Array | None = None  # uploads that were not lost; None: uploads cannot be lost
    drawn: Array | None = None  # clients that took part; None: cohorts have no empty places
    misdrawn: Array | None = None  # the first round with invalid clients or shares, or -1; None:
    # the samplings are those of this package
    virtual: Virtual | None = None  # is not reset; None: there is no clock


def population(federation: Federation, num_classes: int) -> Client:
    """All clients [C], without private state."""
    return jax.tree.map(jnp.asarray, population_on_host(federation, num_classes))


def population_on_host(federation: Federation, num_classes: int) -> Client:
    """All clients [C] as NumPy arrays, without private state.

    num_classes: K, or 0 if the examples are not divided into classes.
    """
    count = np.asarray(federation.train.count)
    n = count.astype(np.float32)
    fields: dict[str, Any] = {
        "id": np.arange(len(n), dtype=np.int32),
        "n": n,
        "weight": n / np.float32(count.sum()),
        "label_count": _label_counts(federation.train, np.asarray(federation.y), num_classes),
        "private": (),
        "num_clients": np.full_like(n, len(n)),
        "mean_n": np.full_like(n, count.mean()),
        "traits": traits(federation, slice(len(n))),
    }
    return Client(**fields)


def new_on_host(federation: Federation, num_classes: int) -> Client | None:
    """The new clients [N] as NumPy arrays; None if the federation has none.

    Their ids follow those of the population, so that no other client has the same random numbers.
    Their weight is 0.
    """
    if federation.new_train is None:
        return None
    count = np.asarray(federation.train.count)
    new = population_on_host(federation._replace(train=federation.new_train), num_classes)
    fields: dict[str, Any] = {
        "id": new.id + np.int32(len(count)),
        "weight": np.zeros_like(new.weight),
        "num_clients": np.full_like(new.n, len(count)),
        "mean_n": np.full_like(new.n, count.mean()),
        "traits": traits(federation, slice(len(count), None)),
    }
    return new._replace(**fields)


def traits(federation: Federation, clients: slice) -> dict[str, Any]:
    """The traits of some of the clients [C + N]."""
    return jax.tree.map(lambda a: a[clients], federation.traits)


def _label_counts(rows, y, num_classes):
    """The number of examples of each class of each client, [C, K]; computed in pieces."""
    if not num_classes:
        return NoCounts()
    start, count, held = (np.asarray(a) for a in (rows.start, rows.count, rows.list))
    out = np.empty((len(rows), num_classes), np.float32)
    for begin in range(0, len(rows), PIECE):
        part = slice(begin, begin + PIECE)
        n = count[part]
        client = np.repeat(np.arange(len(n)), n)
        place = np.arange(len(client)) + np.repeat(start[part] - (np.cumsum(n) - n), n)
        cell = client * num_classes + y[held[place]]
        out[part] = np.bincount(cell, minlength=len(n) * num_classes).reshape(-1, num_classes)
    return out


def no_progress(
    losses: bool = False,
    empty_places: bool = False,
    own_sampling: bool = False,
    clock: bool = False,
) -> Progress:
    """The sums before the first round after an evaluation.

    losses: whether uploads may be lost. empty_places: `Extra.empty_places`. own_sampling: whether
        samples are checked, see `sampling.is_own`. clock: whether the run has a clock.
    """
    zero = jnp.zeros(4)
    return Progress(
        train_loss=zero[0],
        examples=zero[1],
        steps=zero[2],
        lane_steps=zero[3],
        diverged=jnp.int32(-1),
        arrived=jnp.int32(0) if losses else None,
        drawn=jnp.int32(0) if empty_places else None,
        misdrawn=jnp.int32(-1) if own_sampling else None,
        virtual=Virtual(jnp.zeros(())) if clock else None,
    )


def init(method: Method, keys: Keys, num_clients: int) -> State:
    """The state before the first round; initial weights depend only on the seed."""
    return contract.first_state(method, keys.init, num_clients)


def play(
    program: Program, lane: Lane, state: State, sums: Progress, start: Array, count: Array
) -> tuple[State, Progress]:
    """Runs rounds start .. start + count - 1 (the first round is 0) as one pure function.

    The sums are passed in and returned, so that the results do not depend on how rounds are divided
    into blocks.
    """

    def one(t, carry):
        state, sums = carry
        after, measured = play_round(program, lane, state, t, sums.virtual)

        def first(round_before, fails):
            return jnp.where((round_before < 0) & fails, t, round_before)

        misdrawn = sums.misdrawn
        return tree.typed_like(after, state), Progress(
            train_loss=sums.train_loss + measured.train_loss,
            examples=sums.examples + measured.examples,
            steps=sums.steps + measured.steps,
            lane_steps=sums.lane_steps + measured.lane_steps,
            diverged=first(sums.diverged, ~measured.finite),
            arrived=None if sums.arrived is None else sums.arrived + measured.arrived,
            drawn=None if sums.drawn is None else sums.drawn + measured.drawn,
            misdrawn=None if misdrawn is None else first(misdrawn, ~measured.is_cohort),
            virtual=measured.virtual,
        )

    return jax.lax.fori_loop(start, start + count, one, (state, sums))


class Round(NamedTuple):
    """The measurements of one round."""

    train_loss: Array  # clients' means over steps, averaged by share, including lost uploads
    examples: Array
    steps: Array
    lane_steps: Array
    finite: Array
    arrived: Array  # uploads that were not lost
    drawn: Array  # clients that took part
    is_cohort: Array  # `contract.is_cohort`
    virtual: Virtual | None  # after the round; None: there is no clock


def play_round(
    program: Program, lane: Lane, state: State, t: Array, virtual: Virtual | None = None
) -> tuple[State, Round]:
    """Runs round t: samples a cohort, then carries out every exchange of the method.

    virtual: that at the beginning of the round; None: there is no clock.
    """
    program = in_round(program, t)
    (exchanges, extra), server = (program.method.round, program.method.extra), state.server
    with jax.named_scope("sample"):
        cohort, rows, places, is_cohort, update = _sample(program, lane, state, t)
    k_clients = _streams(lane, t, cohort, update)
    arrived, passes, virtual = _outcome(program, lane, state, k_clients, cohort, update, virtual)
    before = cohort.private
    trainings, lane_steps = [], 0
    for left, exchange in zip(reversed(range(len(exchanges))), exchanges, strict=True):
        stacked = cohort, streams.exchange(k_clients, left), passes
        carry_out = _in_turn if extra.one_by_one else _at_once
        k_server = streams.server(lane.keys.cohort, t, left)
        with_whom = lane.federation, rows, stacked, arrived, k_server
        past = () if update is None else ((virtual.history, update),)
        server, private, done, executed = carry_out(program, exchange, server, *with_whom, *past)
        cohort = cohort._replace(private=private)
        trainings += done
        lane_steps += executed
    if extra.alone is not None:
        server = extra.alone(server, program.strategy.split)
    contract.check_alike(AGGREGATED, server, state.server)
    cohort = cohort._replace(private=_private(program, cohort, before, arrived))
    measured = _measure(program, trainings, lane_steps, cohort, server, arrived, is_cohort, virtual)
    private = program.strategy.put(state.private, places, cohort.private)
    if update is not None:
        measured = _record_update(measured, update.facts, exchanges[0], server)
    return State(server, private), measured


def _private(program, cohort, before, arrived):
    """The private state [M] after a round, which clients that took no part have as before."""
    extra, changes = program.method.extra, None
    if extra.empty_places:
        changes = _is_drawn(program, cohort)
    if extra.acknowledged and arrived is not None:
        changes = arrived if changes is None else changes & arrived
    return cohort.private if changes is None else tree.where(changes, cohort.private, before)


def _record_update(measured, facts, exchange, server):
    """The measurements of an asynchronous round, with the server's state in the history."""
    history = measured.virtual.history
    history = asynchronous.in_history(history, exchange, server, facts.new_place)
    virtual = measured.virtual._replace(history=history)
    return measured._replace(drawn=facts.started, arrived=facts.received, virtual=virtual)


def in_round(program: Program, t: Array) -> Program:
    """The program with the learning rates of round t."""
    if program.scheduled is None:
        return program
    method, fields = program.scheduled(t)
    return program._replace(method=method, plan=program.plan._replace(**fields))


def draw(program: Program, lane: Lane, server: PyTree, t: Array) -> tuple[Array, Array]:
    """The clients of round t, and their shares in the server's mean: [M] each."""
    method, plan, *_ = program
    k_cohort = jax.random.fold_in(lane.keys.cohort, t)
    clients = without_padding(plan, lane.population)
    if lane.schedule is None:
        return contract.check_sample(method.sample(k_cohort, server, clients, plan.cohort))
    ids = lane.schedule.ids[t]  # the sampling takes all of these clients, and gives them shares
    _, shares = method.sample(k_cohort, server, tree.take(clients, ids), len(ids))
    return contract.check_sample((ids, shares))


def _sample(program, lane, state, t):
    """The cohort of round t, in the strategy's order of clients.

    Returns the clients [M], their `WorkRows` [M, N], the positions [M] of their private state,
    whether the sample is a cohort, and the update of an asynchronous run, or None.
    """
    method, plan, strategy, _ = program
    ids, share = strategy.whole(draw(program, lane, state.server, t))
    number = plan.num_clients or len(lane.population.id)
    is_cohort = contract.is_cohort(ids, share, number)
    update = None if lane.schedule is None else asynchronous.get_update(lane.schedule, t)
    extra, unequal = method.extra, plan.straggler or not plan.equal_steps
    if not extra.one_by_one and (unequal or extra.empty_places):
        order = strategy.deal(_batches(program, lane, ids, share, t))
        ids, share = ids[order], share[order]
        update = update and update.reordered(order)
    places = ids if lane.held is None else jnp.searchsorted(lane.held, ids).astype(ids.dtype)
    clients = strategy.take(lane.population, ids)
    rows = work_rows(method, lane.federation)
    rows, private = strategy.take((rows, state.private), places)
    attacks = failures.attacks(plan, lane.keys.cohort, ids, number)
    clients = clients._replace(weight=share, private=private, attacks=attacks)
    return clients, rows, places, is_cohort, update


def _streams(lane, t, cohort, update):
    """The random streams of the cohort's clients [M] in round t."""
    if update is None:
        return streams.clients(lane.keys.local, t, cohort.id)
    return streams.tasks(lane.keys.local, update.uploads["version"], cohort.id)


def _outcome(program, lane, state, k_clients, cohort, update, virtual):
    """Whose uploads are used [M], their work [M], and the time after the round."""
    if update is not None:
        return None, update.uploads["work"], virtual._replace(clock=update.facts.time)

    def sent():
        return sum(message_bytes(program, lane, state))

    in_turn, plan = program.method.extra.one_by_one, program.plan
    time = None if virtual is None else virtual.clock
    facts = cohort, sent, time, _is_drawn(program, cohort), in_turn
    arrived, seconds, passes = failures.outcome(plan, k_clients, *facts)
    passes = _without_empty(program, passes, cohort.weight)
    return arrived, passes, virtual and Virtual(time + seconds)


def _batches(program, lane, ids, share, t):
    """The work of each client in round t, [M], up to a common factor."""
    settings = tree.take(lane.population.traits.get("settings"), ids)
    of_pass = num_batches(lane.population.n[ids], batch_size(program.plan, settings))
    if program.plan.steps:
        of_pass = jnp.ones_like(of_pass)
    passes = failures.passes(program.plan, streams.clients(lane.keys.local, t, ids), settings)
    passes = _without_empty(program, passes, share)
    return of_pass if passes is None else of_pass * passes


def _without_empty(program, passes, share):
    """The work of each client [M], which is 0 in empty places."""
    if not program.method.extra.empty_places:
        return passes
    return jnp.where(share > 0, program.plan.work if passes is None else passes, 0)


def without_padding(plan: Plan, stacked: PyTree) -> PyTree:
    """Arrays with an entry for each client [C, ...], without the padding for the devices."""
    count = plan.num_clients
    return stacked if count is None else jax.tree.map(lambda a: a[:count], stacked)


def _at_once(program, exchange, server, federation, rows, stacked, arrived, key, past=None):
    """Carries out an exchange in which no client waits for another one's upload.

    past: the history and the update of an asynchronous run; None: all clients start from `server`.

    Returns the server, the clients' private state, the trainings and the number of executed steps.
    """
    run, shared, entries = one_client(exchange, program.plan), server, stacked
    staleness = jnp.zeros(stacked[0].id.shape)
    if past is not None:
        history, (of_uploads, _) = past
        run, shared = asynchronous.from_version(exchange, run), (server, history)
        entries, staleness = (of_uploads["place"], stacked), of_uploads["staleness"]
    uploads, private, trainings = program.strategy.each(run)(shared, federation, rows, entries)
    uploads, cohort = failures.received(uploads, stacked[0], arrived)
    key = jnp.broadcast_to(key, cohort.id.shape)
    public = Public(federation, program.plan)
    cohort = cohort._replace(key=key, staleness=staleness, public=public)
    with jax.named_scope("aggregate"):
        after = exchange.aggregate(server, uploads, cohort)
    server = after if program.method.extra.private_sum else failures.learned(after, server, arrived)
    executed = sum(program.strategy.lane_steps(training.steps) for training in trainings)
    return server, private, trainings, executed


def _in_turn(program, exchange, server, federation, rows, stacked, arrived, key):
    """Like `_at_once`, but the server is updated after each client, before the next one starts."""
    run = one_client(exchange, program.plan)
    federation, train = program.strategy.collect(federation, rows.train)
    rows = rows._replace(train=train)  # no validation rows: `contract.check_stages`
    public = Public(federation, program.plan)

    def step(server, one_client):
        rows, entry, arrived = one_client
        upload, private, trainings = run(server, federation, rows, entry)
        uploads, cohort = jax.tree.map(lambda a: a[None], (upload, entry[0]))
        k_client = jax.random.fold_in(key, entry[0].id)[None]
        one = jnp.ones(1)
        cohort = cohort._replace(weight=one, arrived=one > 0, key=k_client, staleness=0 * one)
        cohort = cohort._replace(public=public)
        with jax.named_scope("aggregate"):
            after = exchange.aggregate(server, uploads, cohort)
        contract.check_alike(AGGREGATED, after, server)
        after = failures.learned(after, server, arrived)
        return tree.typed_like(after, server), (private, trainings)

    server, (private, trainings) = jax.lax.scan(step, server, (rows, stacked, arrived))
    executed = sum(jnp.sum(training.steps) for training in trainings)
    return server, private, trainings, executed


def one_client(exchange, plan):
    """The function (server, federation, rows, (client, key, passes)) that runs one client.

    rows: the client's `WorkRows`. It returns (upload, private state, trainings).
    """

    def run(server, federation, rows, entry):
        client, key, passes = entry
        with jax.named_scope("send"):
            message = exchange.send(server, client.id)
        pool, (train, validation) = client_federation(federation, client), rows
        settings = client.traits.get("settings")
        work, trainings = make_work(pool, train, plan, key, passes, validation, settings)
        with jax.named_scope("local"):
            returned = exchange.local(message, client, work)
        upload, private = contract.check_local(returned, client.private)
        return upload, private, trainings

    return run


def _is_drawn(program, cohort):
    """Whether each entry of a cohort is a client that takes part, [M] bool."""
    if program.method.extra.empty_places:
        return cohort.weight > 0
    return jnp.ones_like(cohort.id, bool)


def _measure(program, trainings, lane_steps, cohort, server, arrived, is_cohort, virtual):
    """The `Round` of these trainings, one for each call of `train`, with leaves [M]."""
    is_drawn = _is_drawn(program, cohort)
    loss, steps, examples, own_steps = jnp.zeros((4, 1))
    if trainings:
        loss, steps, examples, own_steps = (sum(a) for a in zip(*trainings, strict=True))
    train_loss = jnp.sum(cohort.weight * loss / jnp.maximum(own_steps, 1))
    return Round(
        train_loss=train_loss,
        examples=jnp.sum(examples),
        steps=jnp.sum(steps),
        lane_steps=lane_steps,
        finite=jnp.isfinite(train_loss) & tree.finite((server, cohort.private)),
        arrived=jnp.sum(is_drawn if arrived is None else is_drawn & arrived, dtype=jnp.int32),
        drawn=jnp.sum(is_drawn, dtype=jnp.int32),
        is_cohort=is_cohort,
        virtual=virtual,
    )


def view_pool(plan: Plan, strategy: Strategy, federation: Federation) -> Array:
    """All examples of the pool after the plan's view, [R, ...]."""
    count, size = federation.x.shape[0], plan.eval_batch
    rows = jnp.arange(-(-count // size) * size) % count

    def block(shared, federation, rows, entry):
        return fetch(federation, rows, plan).x

    everyone = strategy.everyone(block, plan.cohort)
    seen = everyone((), federation, rows.reshape(-1, size), ())
    return seen.reshape(-1, *seen.shape[2:])[:count]


def cohort_size(program: Program, lane: Lane, state: State) -> int:
    """The size of a cohort, which may be larger than the plan's if the method samples more."""

    def ids(key, server, population):
        clients = without_padding(program.plan, population)
        drawn = program.method.sample(key, server, clients, program.plan.cohort)
        return contract.check_sample(drawn)[0]

    key = jax.random.key(0)
    return jax.eval_shape(ids, key, state.server, lane.population).shape[0]


def message_bytes(program: Program, lane: Lane, state: State) -> tuple[int, int]:
    """The bytes (up, down) of one client in one round, from the shapes of uploads and messages.

    Nothing is computed. Lost uploads are not considered.
    """

    def first(a):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), a)

    client = first(lane.population)._replace(private=first(state.private))
    rows = jax.tree.map(
        lambda of_set: jax.ShapeDtypeStruct((of_set.longest,), jnp.int32),
        work_rows(program.method, lane.federation),
        is_leaf=lambda part: isinstance(part, Rows),
    )
    entry = client, jax.eval_shape(lambda: jax.random.key(0)), None
    up = down = 0
    for exchange in program.method.round:
        run = one_client(exchange, program.plan)
        upload, _, _ = jax.eval_shape(run, state.server, lane.federation, rows, entry)
        up += tree.num_bytes(upload)
        down += tree.num_bytes(jax.eval_shape(exchange.send, state.server, client.id))
    return up, down
