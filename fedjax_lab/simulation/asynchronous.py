"""Asynchronous rounds: who trains when, from which version of the server's state.

No duration depends on the weights. The host therefore simulates the event queue before training,
and stores which uploads each update of the server uses and from which version of the server's state
each client has started. Training is then a sequence of ordinary rounds whose cohorts come from this
`Schedule`.

A client has at most one task in flight, and at most one upload in an update: after its task it
waits for the update. Tasks that end at the same time arrive together, before new tasks start.
"""

import heapq
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var

from fedjax_lab import tree
from fedjax_lab.simulation.clock import Availability, Clock, Pace, durations, until_available
from fedjax_lab.types import Array, Exchange, Method, PyTree

DRAWS = 1 << 12  # tasks whose random numbers are drawn at a time
TRIES = 64  # clients that are drawn to find an available one, before all are examined


class Schedule(NamedTuple):
    """The uploads of every update t, in the order of the clients, [T, K]; facts of updates, [T]."""

    ids: Any  # [T, K] int32, the clients
    version: Any  # [T, K] int32, the update after which each of them has started
    place: Any  # [T, K] int32, where `Past.history` has that version
    new_place: Any  # [T] int32, where it stores the version that the update makes
    time: Any  # [T] seconds since the beginning of the run
    started: Any  # [T] int32, tasks that have started since the update before
    received: Any  # [T] int32, uploads that the server has received since then, with dropped ones
    work: Any = None  # [T, K] int32, how much of `Plan.work` each client did; None: all of it


class Rules(NamedTuple):
    """What determines an asynchronous schedule besides the clients' paces."""

    updates: int  # T
    buffer: int  # K, uploads of an update
    concurrency: int  # tasks in flight
    max_staleness: int = 0  # uploads from older versions are dropped; 0: none
    start_rate: float = 0.0  # tasks that start per second; 0: one starts when another one ends
    lost: float = 0.0  # probability that an upload is lost
    straggler: float = 0.0  # probability that a client does only some of its work
    work: Any = 1  # `Plan.work`; of each client, [C], if they differ


class Tasks(NamedTuple):
    """Facts [T] of the updates on tasks: how many were lost, and how long all have taken."""

    lost: np.ndarray  # [T] tasks whose uploads were lost since the update before
    busy: np.ndarray  # [T] seconds that all clients have spent on tasks since the beginning


class Timeline(NamedTuple):
    """An asynchronous run, as the host has simulated it."""

    schedule: Schedule
    tasks: Tasks


def make_schedule(clock: Clock, pace: Pace, rules: Rules, sent: int, seed: int) -> Timeline:
    """Simulates the events of a run on the host.

    The schedule of more updates begins with that of fewer.

    Args:
      clock: the law of durations.
      pace: that of all clients, arrays [C] in NumPy.
      rules: see `Rules`; the buffer is at most C.
      sent: the bytes of the messages of a client, up and down.
      seed: of the run.
    """
    queue = _Queue(clock, pace, rules, sent, seed)
    while len(queue.rows) < rules.updates:
        queue.start_tasks()
        queue.advance()
    schedule, tasks = _tabulated(queue.rows[: rules.updates])
    return Timeline(schedule if rules.straggler else schedule._replace(work=None), tasks)


class _Row(NamedTuple):
    """One update of the server, as a row of the schedule."""

    uploads: list  # (client, version, place, work), in the order of the clients
    new_place: int
    time: float
    started: int
    received: int
    lost: int
    busy: float


class _Queue:
    """The events of a run: tasks in flight, uploads in the buffer, and places of versions."""

    def __init__(self, clock, pace, rules, sent, seed):
        self._available, self._rules = pace.available, rules
        self._clock, self._sent = clock, sent
        self._paces = list(map(Pace, pace.compute.tolist(), pace.per_byte.tolist()))
        self._work = np.broadcast_to(rules.work, len(self._paces)).tolist()
        self._picks, self._draws, self._gaps = _random(clock, seed)
        self._next_start = self._gap()
        self._in_flight: list[tuple] = []  # a heap of (end, number, client, version, work, is_lost)
        self._idle = list(range(len(self._work)))
        self._buffer: list[tuple] = []  # (client, version, place, work)
        self._time, self._busy, self._number = 0.0, 0.0, 0
        self._users, self._place, self._free = {0: 0}, {0: 0}, []  # of the versions in use
        self._started = self._received = self._lost = 0  # since the last update
        self.rows: list[_Row] = []

    def _gap(self):
        """The seconds between two tasks that begin at random."""
        return next(self._gaps) / (self._rules.start_rate or 1)

    def _has_room(self):
        return len(self._in_flight) < self._rules.concurrency and bool(self._idle)

    def start_tasks(self):
        """Starts the tasks that are due."""
        if not self._rules.start_rate:
            room = self._rules.concurrency - len(self._in_flight)
            for _ in range(min(room, len(self._idle))):
                self._start()
        elif self._time == self._next_start:
            self._next_start += self._gap()
            self._start()

    def advance(self):
        """Advances to the next time at which tasks end or one is due to start.

        Random starts that find no room are skipped. The times between them are exponential, so that
        the rest of such a time has the same law at every event.
        """
        end = self._in_flight[0][0] if self._in_flight else np.inf
        has_room = self._has_room()
        if self._rules.start_rate and has_room and self._next_start <= end:
            self._go_to(self._next_start)
            return
        self._go_to(end)
        while self._in_flight and self._in_flight[0][0] == end:
            self._arrive(*heapq.heappop(self._in_flight)[2:])
        if self._rules.start_rate and not has_room:
            self._next_start = end + self._gap()

    def _go_to(self, time):
        self._busy += len(self._in_flight) * (time - self._time)
        self._time = time

    def _start(self):
        """Starts a task of a random idle client."""
        j, wait = self._pick()
        client, self._idle[j] = self._idle[j], self._idle[-1]
        self._idle.pop()
        xi, lost, late, fewer = next(self._draws)
        rules, work = self._rules, self._work[client]
        if late < rules.straggler:
            work = 1 + int(fewer * (work - 1))
        compute, sending = durations(self._clock, self._paces[client], xi, work, self._sent)
        seconds = wait + (compute + sending)
        version, is_lost = len(self.rows), lost < rules.lost
        task = self._time + seconds, self._number, client, version, work, is_lost
        heapq.heappush(self._in_flight, task)
        self._number += 1
        self._started += 1
        self._users[version] += 1

    def _pick(self):
        """The position of an idle client that is available, and the seconds until it is."""
        if self._available is None:
            return int(next(self._picks) * len(self._idle)), 0.0
        for u in itertools.islice(self._picks, TRIES):
            j = int(u * len(self._idle))
            if not self._wait([self._idle[j]])[0]:
                return j, 0.0
        waits = self._wait(self._idle)
        soonest = np.flatnonzero(waits == waits.min())
        j = int(soonest[int(next(self._picks) * len(soonest))])
        return j, float(waits[j])

    def _wait(self, clients):
        of_clients = Availability(*(a[clients] for a in self._available))
        return until_available(of_clients, self._time, np)

    def _arrive(self, client, version, work, is_lost):
        """Puts the upload of a task that ends into the buffer, unless it is lost or too old."""
        self._received += not is_lost
        self._lost += is_lost
        place = self._place.get(version)
        if place is not None:
            self._users[version] -= 1
            self._release(version)
        if is_lost or place is None:
            self._idle.append(client)
            return
        self._buffer.append((client, version, place, work))
        if len(self._buffer) == self._rules.buffer:
            self._update()

    def _update(self):
        """The server uses the buffer; its clients become idle."""
        row = _Row(
            uploads=sorted(self._buffer),
            new_place=self._new_place(len(self.rows)),
            time=self._time,
            started=self._started,
            received=self._received,
            lost=self._lost,
            busy=self._busy,
        )
        self.rows.append(row)
        self._started = self._received = self._lost = 0
        self._idle += [client for client, *_ in self._buffer]
        self._buffer = []

    def _new_place(self, now):
        """The place of the version after `now`; frees the places of versions that no task needs."""
        oldest = now - self._rules.max_staleness
        if self._rules.max_staleness and oldest in self._users:
            self._release(oldest, even_if_used=True)
        if not self._users[now]:
            self._release(now, even_if_used=True)
        place = heapq.heappop(self._free) if self._free else len(self._place)
        self._users[now + 1], self._place[now + 1] = 0, place
        return place

    def _release(self, version, even_if_used=False):
        """Frees the place of a version from which no task will start or end in an update."""
        if even_if_used or (version < len(self.rows) and not self._users[version]):
            del self._users[version]
            heapq.heappush(self._free, self._place.pop(version))


def _random(clock, seed):
    """Random numbers: of picks, of tasks (xi, lost, late, fewer), and gaps between starts."""
    picks, tasks, gaps = (np.random.default_rng([seed, 3, n]) for n in (2, 3, 4))
    return (
        _each(lambda: picks.random(DRAWS)),
        _each(partial(_draw_tasks, clock, tasks)),
        _each(lambda: gaps.standard_exponential(DRAWS)),
    )


def _draw_tasks(clock, rng):
    u = rng.random((DRAWS, 4))
    below_one = np.minimum(np.float32(u[:, 0]), np.nextafter(np.float32(1), np.float32(0)))
    u[:, 0] = clock.factor(jnp.asarray(below_one))
    return u


def _each(draw):
    """The entries of all results of `draw`, one after another, as Python numbers."""
    while True:
        yield from draw().tolist()


def _tabulated(rows):
    """The schedule of these updates, and what became of the other tasks."""
    uploads, new_place, time, started, received, lost, busy = zip(*rows, strict=True)
    ids, version, place, work = np.moveaxis(np.array(uploads, np.int32), -1, 0)
    schedule = Schedule(
        ids=ids,
        version=version,
        place=place,
        new_place=np.array(new_place, np.int32),
        time=np.array(time),
        started=np.array(started, np.int32),
        received=np.array(received, np.int32),
        work=work,
    )
    return schedule, Tasks(np.array(lost), np.array(busy))


# In a round.


def num_places(schedules: list[Schedule]) -> int:
    """The number of versions that `Past.history` must hold."""
    return 1 + max(int(schedule.new_place.max()) for schedule in schedules)


class Past(NamedTuple):
    """The server's state in an asynchronous round, and the versions from which clients start."""

    server: PyTree
    history: Sequence[Array]  # [P, ...] versions of what `send` reads, as long as they are in use
    ids: Array  # [K] the clients of the round
    places: Array  # [K] where the history has the version of each of them


def started(schedule: Schedule, t: Array, work: Array | None) -> tuple[Array, Array | None, Array]:
    """The versions from which the clients [K] of update t start, their work, and its time.

    work: theirs, if the schedule has none.
    """
    work = work if schedule.work is None else schedule.work[t]
    return schedule.version[t], work, schedule.time[t]


def first_history(method: Method, server: PyTree, places: int) -> list[Array]:
    """The history of a run that begins with this server's state; other places are zero."""
    (exchange,) = method.round
    read = _read(exchange, server)
    return written(tree.repeat(tree.zeros(read), places), exchange, server, jnp.int32(0))


def written(history: list[Array], exchange: Exchange, server: PyTree, place: Array) -> list[Array]:
    """The history with this server's state in one place."""
    pairs = zip(history, _read(exchange, server), strict=True)
    return [past.at[place].set(a) for past, a in pairs]


def from_versions(exchange: Exchange) -> Exchange:
    """The exchange of a server with the state `Past`, whose clients start from earlier versions."""

    def send(past, id):
        place = past.places[jnp.argmax(past.ids == id)]
        leaves, structure = jax.tree.flatten(past.server)
        versions, is_read = iter(past.history), _is_read(exchange, past.server)
        leaves = [next(versions)[place] if r else a for a, r in zip(leaves, is_read, strict=True)]
        return exchange.send(jax.tree.unflatten(structure, leaves), id)

    def aggregate(past, uploads, cohort):
        return past._replace(server=exchange.aggregate(past.server, uploads, cohort))

    return exchange._replace(send=send, aggregate=aggregate)


def _read(exchange, server):
    """The arrays of the server's state that `send` reads."""
    leaves = zip(jax.tree.leaves(server), _is_read(exchange, server), strict=True)
    return [a for a, is_read in leaves if is_read]


def _is_read(exchange, server):
    """Whether `send` reads each array of the server's state."""
    jaxpr = jax.make_jaxpr(exchange.send)(server, jnp.int32(0)).jaxpr
    used = [*jaxpr.outvars, *(v for equation in jaxpr.eqns for v in equation.invars)]
    used = {v for v in used if isinstance(v, Var)}
    return [v in used for v in jaxpr.invars[:-1]]
