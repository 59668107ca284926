"""Rounds of federated training as pure functions, independent of methods and devices."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import streams, tree
from fedjax_lab.simulation import asynchronous, by_kind, clock, contract, failures
from fedjax_lab.simulation.asynchronous import Schedule
from fedjax_lab.simulation.client_work import (
    Public,
    Training,
    client_federation,
    make_work,
    planned_batches,
    work_of,
    work_rows,
)
from fedjax_lab.simulation.strategies import Strategy
from fedjax_lab.streams import Keys
from fedjax_lab.types import (
    Array,
    Client,
    Federation,
    Method,
    Plan,
    PyTree,
    State,
    Turn,
)


class Program(NamedTuple):
    """The program of a run: a method, its sizes, and how its clients share the devices."""

    method: Method
    plan: Plan
    strategy: Strategy
    scheduled: Callable[[Any, Array], Any] = lambda program, t: program
    # (program, t) -> the program with the learning rates of round t
    message_bytes: tuple[int, int] = (0, 0)  # up and down, of one client in a round: see `checked`


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
    counts: dict[str, Array]  # of what can happen in the rounds of this run: `COUNTS`
    history: list[Array]  # `asynchronous.Past.history`; empty if rounds are synchronous


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
    seconds: Array  # of the clock, at the end of the round; 0 if there is none


class Count(NamedTuple):
    """A number of `Progress.counts`."""

    start: np.generic
    after: Callable[[Array, Round, Array], Array]  # (number before, the round, t) -> after round t
    carried: bool = False  # whether an evaluation does not reset it


COUNTS = {
    # Uploads that were not lost: if uploads can be lost.
    "arrived": Count(np.int32(0), lambda number, of, t: number + of.arrived),
    # Clients that took part: if cohorts have empty places.
    "drawn": Count(np.int32(0), lambda number, of, t: number + of.drawn),
    # The first round with invalid clients or shares, or -1: if a sampling is a user's.
    "misdrawn": Count(np.int32(-1), lambda number, of, t: _first(number, ~of.is_cohort, t)),
    # Seconds since the beginning of the run: if it has a clock.
    "seconds": Count(np.float32(0), lambda number, of, t: of.seconds, carried=True),
}


def no_progress(counts: Collection[str] = ()) -> Progress:
    """Returns the sums before the first round. counts: names of `COUNTS`, which the run needs."""
    zero: Any = np.zeros((), jnp.result_type(float))  # a NumPy number needs no program
    never: Any = np.int32(-1)
    begun: dict[str, Any] = {name: COUNTS[name].start for name in counts}
    return Progress(
        train_loss=zero,
        examples=zero,
        steps=zero,
        lane_steps=zero,
        diverged=never,
        counts=begun,
        history=[],
    )


def reset(sums: Progress, nothing: Progress) -> Progress:
    """Returns the sums after an evaluation, which begin again except for carried counts.

    nothing: the sums that `no_progress` returns.
    """
    carried = {name: a for name, a in sums.counts.items() if COUNTS[name].carried}
    return nothing._replace(counts=nothing.counts | carried, history=sums.history)


def init(
    method: Method, keys: Keys, num_clients: int, traits: Mapping[str, Any] = MappingProxyType({})
) -> State:
    """Returns the state before the first round. Initial weights depend only on the seed.

    traits: of the clients, which say how the private state is stored if they have unlike models.
    """
    state = contract.first_state(method, keys.init, num_clients)
    return state._replace(private=by_kind.stored(state.private, traits))


def play(
    program: Program, lane: Lane, state: State, sums: Progress, start: Array, count: Array
) -> tuple[State, Progress]:
    """Runs rounds start .. start + count - 1 as one pure function; the first round of a run is 0.

    The sums are passed in and returned, so that the results do not depend on how rounds are divided
    into blocks.

    Args:
      program: what every seed runs.
      lane: the clients and the random numbers of one seed.
      state: that of the server and the clients before these rounds.
      sums: those over earlier rounds since the last evaluation.
      start: the number of the first of these rounds, [] int32.
      count: how many rounds to run, [] int32.

    Returns:
      The state after these rounds, and the sums with these rounds added.
    """

    def one(t, carry):
        before, sums = carry
        seconds = sums.counts.get("seconds", jnp.zeros(()))
        after, measured = play_round(program, lane, before, t, seconds, sums.history)
        if (schedule := lane.schedule) is not None:
            measured = measured._replace(drawn=schedule.started[t], arrived=schedule.received[t])
            place, (exchange,) = schedule.new_place[t], program.method.round
            history = asynchronous.written(sums.history, exchange, after.server, place)
            sums = sums._replace(history=history)
        return tree.typed_like(after, before), _added(sums, measured, t)

    return jax.lax.fori_loop(start, start + count, one, (state, sums))


def _added(sums, measured, t):
    """Returns the sums after round t, of which these are the measurements."""
    return sums._replace(
        train_loss=sums.train_loss + measured.train_loss,
        examples=sums.examples + measured.examples,
        steps=sums.steps + measured.steps,
        lane_steps=sums.lane_steps + measured.lane_steps,
        diverged=_first(sums.diverged, ~measured.finite, t),
        counts={name: COUNTS[name].after(a, measured, t) for name, a in sums.counts.items()},
    )


def _first(before, fails, t):
    """Returns the first round that fails, or -1. before: the same, without round t."""
    return jnp.where((before < 0) & fails, t, before)


def play_round(
    program: Program,
    lane: Lane,
    state: State,
    t: Array,
    seconds: Array | float = 0.0,
    history: Sequence[Array] = (),
) -> tuple[State, Round]:
    """Runs round t: samples a cohort, then carries out every exchange of the method.

    Args:
      program: what every seed runs.
      lane: the clients and the random numbers of one seed.
      state: that of the server and the clients before the round.
      t: the number of the round, [] int32.
      seconds: the time of the clock before the round, since the beginning of the run.
      history: `Progress.history` before the round.

    Returns:
      The state after the round, and the measurements of the round.
    """
    program, server = in_round(program, t), state.server
    exchanges, extra = program.method.round, program.method.extra
    with jax.named_scope("sample"):
        turn, is_cohort = _turn(program, lane, server, t, seconds)
        rows, private, places = _taken(program, lane, state.private, turn.clients.id)
    carry_out = _in_turn if extra.one_by_one else _at_once
    if lane.schedule is not None:
        past = asynchronous.Past(server, history, lane.schedule.ids[t], lane.schedule.place[t])
        carry_out = partial(_from_versions, past)
    trainings: list[Training] = []
    keys, before, executed = turn.keys, private, 0
    for left, exchange in zip(reversed(range(len(exchanges))), exchanges, strict=True):
        clients = turn.clients._replace(private=private)
        turn = turn._replace(clients=clients, keys=streams.exchange(keys, left))
        key, federation = streams.server(lane.keys.cohort, t, left), lane.federation
        results = carry_out(program, exchange, server, federation, rows, turn, key)
        server, private, done, steps = results
        trainings, executed = trainings + done, executed + steps
    private = _kept(extra, turn, before, private)
    measured = _measure(turn, trainings, executed, (server, private), is_cohort)
    return State(server, program.strategy.put(state.private, places, private)), measured


def in_round(program: Program, t: Array) -> Program:
    """Returns the program with the learning rates of round t."""
    return program.scheduled(program, t)


def draw(program: Program, lane: Lane, server: PyTree, t: Array) -> tuple[Array, Array]:
    """Draws the clients of round t; returns their ids and shares in the server's mean, [M]."""
    method, plan, *_ = program
    k_cohort = jax.random.fold_in(lane.keys.cohort, t)
    clients = without_padding(plan, lane.population)
    if lane.schedule is None:
        return method.sample(k_cohort, server, clients, plan.cohort)
    ids = lane.schedule.ids[t]  # the sampling takes all of these clients, and gives them shares
    _, shares = method.sample(k_cohort, server, tree.take(clients, ids), len(ids))
    return ids, shares


def _turn(program, lane, server, t, seconds):
    """Returns who takes part in round t and what becomes of each of them, as a `Turn`.

    The clients are in the order of the strategy. The second result is `contract.is_cohort`.
    """
    plan, extra, schedule = program.plan, program.method.extra, lane.schedule
    ids, share = program.strategy.whole(draw(program, lane, server, t))
    number = plan.num_clients or len(lane.population.id)
    clients = program.strategy.take(lane.population, ids)._replace(weight=share)
    version, work = t, work_of(clients.traits.get("settings"))
    if schedule is not None:
        version, work, seconds = asynchronous.started(schedule, t, work)
    turn = Turn(
        clients=clients,
        keys=streams.clients(lane.keys.local, version, clients.id),
        drawn=share > 0 if extra.empty_places else jnp.ones_like(ids, bool),
        staleness=jnp.broadcast_to(t - version, ids.shape).astype(jnp.float32),
        work=work,
        arrived=None,
        seconds=seconds,
    )
    turn = failures.draw(plan, lane.keys.cohort, number, turn, t, extra.empty_places)
    unequal = plan.failures.straggler or not plan.equal_steps or extra.empty_places
    if unequal and not extra.one_by_one:
        order = program.strategy.deal(planned_batches(plan, turn))
        turn = Turn(*tree.take(turn[:-1], order), turn.seconds)
    turn = clock.timed(plan, sum(program.message_bytes), extra.one_by_one, turn)
    return turn, contract.is_cohort(ids, share, number)


def _taken(program, lane, private, ids):
    """Returns the rows and the private state of clients [M], and the positions of that state."""
    places = ids if lane.held is None else jnp.searchsorted(lane.held, ids).astype(ids.dtype)
    rows = work_rows(program.method, lane.federation)
    return *program.strategy.take((rows, private), places), places


def _kept(extra, turn, before, private):
    """Returns the private state [M] after a round.

    It stays as before for clients that took no part and, if the method says so with
    `Extra.acknowledged`, for clients whose uploads are lost.
    """
    if extra.empty_places:
        private = by_kind.where(turn.drawn, private, before)
    if extra.acknowledged and turn.arrived is not None:
        private = by_kind.where(turn.arrived, private, before)
    return private


def without_padding(plan: Plan, stacked: PyTree) -> PyTree:
    """Removes the padding for the devices from arrays with an entry for each client, [C, ...]."""
    count = plan.num_clients
    return jax.tree.map(lambda a: a[:count], stacked) if count else stacked


def _at_once(program, exchange, server, federation, rows, turn, key):
    """Carries out an exchange in which no client waits for another one's upload.

    Returns the server, the clients' private state, the trainings and the number of executed steps.
    """
    run = program.strategy.each(one_client(exchange, program.plan))
    entries = turn.clients, turn.keys, turn.work
    (uploads, private), trainings = run(server, federation, rows, entries)
    uploads, cohort = failures.received(uploads, turn.clients, turn.arrived)
    key = jnp.broadcast_to(key, cohort.id.shape)
    public = Public(federation, program.plan)
    cohort = cohort._replace(key=key, staleness=turn.staleness, public=public)
    with jax.named_scope("aggregate"):
        after = exchange.aggregate(server, uploads, cohort)
    if not program.method.extra.private_sum:
        after = failures.learned(after, server, turn.arrived)
    executed = sum(program.strategy.lane_steps(training.steps) for training in trainings)
    return after, private, trainings, executed


def _from_versions(past, program, exchange, server, federation, rows, turn, key):
    """Does what `_at_once` does, but each client starts from an earlier version of the server."""
    past, exchange = past._replace(server=server), asynchronous.from_versions(exchange)
    past, *results = _at_once(program, exchange, past, federation, rows, turn, key)
    return past.server, *results


def _in_turn(program, exchange, server, federation, rows, turn, key):
    """Does what `_at_once` does, but the server learns from each client before the next starts."""
    run = one_client(exchange, program.plan)
    federation, train = program.strategy.collect(federation, rows.train)
    rows = rows._replace(train=train)  # no validation rows: `contract.check_stages`
    public, one = Public(federation, program.plan), jnp.ones(1)

    def step(server, one_client):
        rows, entry, arrived = one_client
        (upload, private), trainings = run(server, federation, rows, entry)
        uploads, cohort = jax.tree.map(lambda a: a[None], (upload, entry[0]))
        k_client = jax.random.fold_in(key, entry[0].id)[None]
        cohort = cohort._replace(weight=one, arrived=one > 0, key=k_client, staleness=0 * one)
        with jax.named_scope("aggregate"):
            after = exchange.aggregate(server, uploads, cohort._replace(public=public))
        after = failures.learned(after, server, arrived)
        return tree.typed_like(after, server), (private, trainings)

    entries = turn.clients, turn.keys, turn.work
    server, (private, trainings) = jax.lax.scan(step, server, (rows, entries, turn.arrived))
    executed = sum(jnp.sum(training.steps) for training in trainings)
    return server, private, trainings, executed


def one_client(exchange, plan):
    """Returns the function that runs one client in an exchange.

    Its arguments are (server, federation, rows, (client, key, passes)), where `rows` are the
    client's `WorkRows` and `passes` is its entry of `Turn.work`. It returns
    ((upload, private state), trainings).
    """

    def run(server, federation, rows, entry):
        client, key, passes = entry
        with jax.named_scope("send"):
            message = exchange.send(server, client.id)
        pool, (train, validation) = client_federation(federation, client), rows
        settings = client.traits.get("settings")
        work, trainings = make_work(pool, train, plan, key, passes, validation, settings)
        with jax.named_scope("local"):
            return exchange.local(message, client, work), trainings

    return run


def _measure(turn, trainings, lane_steps, learned, is_cohort):
    """Returns the measurements of a round.

    trainings: one for each call of `train`, with leaves [M]. lane_steps: the number of executed
    steps. learned: the server's state and the clients' private state, which must be finite.
    """
    loss, steps, examples, own_steps = jnp.zeros((4, 1))
    if trainings:
        loss, steps, examples, own_steps = (sum(a) for a in zip(*trainings, strict=True))
    train_loss = jnp.sum(turn.clients.weight * loss / jnp.maximum(own_steps, 1))
    arrived = turn.drawn if turn.arrived is None else turn.drawn & turn.arrived
    return Round(
        train_loss=train_loss,
        examples=jnp.sum(examples),
        steps=jnp.sum(steps),
        lane_steps=lane_steps,
        finite=jnp.isfinite(train_loss) & tree.finite(learned),
        arrived=jnp.sum(arrived, dtype=jnp.int32),
        drawn=jnp.sum(turn.drawn, dtype=jnp.int32),
        is_cohort=is_cohort,
        seconds=turn.seconds,
    )
