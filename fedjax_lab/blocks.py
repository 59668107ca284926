"""Rounds with the clients of a block on the devices, and everybody's private state on the host.

A block is some rounds whose cohorts are drawn ahead, from the streams that draw them in the rounds
themselves. On the devices are the private state, and where examples are streamed the examples, of
the clients in those cohorts: the devices divide them, and each process reads and writes those of
its segment (`owners`). What a round computes is what it computes with everybody there.

One thread besides the main one reads from the host and writes to it, in the order of its tasks:
while a block is played, it writes what the block before has left, and reads what the next one
needs. It reads clients of the next block that are in the block being played as well too early; they
are replaced on the devices when that block is over.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import parallel, simulate, tree
from fedjax_lab.host_state import HostState, from_bits, to_bits
from fedjax_lab.owners import Owners
from fedjax_lab.parts import Part
from fedjax_lab.simulate import Lane, Program, Progress
from fedjax_lab.tracing import depends
from fedjax_lab.types import CLIENT_ROWS, POOL, Federation, PyTree, State

STATE_BYTES = 1 << 24  # of the private state in a block; the devices hold up to four blocks
EXAMPLE_BYTES = 1 << 26  # of streamed examples in a block
MOST_ROUNDS = 256  # of a block


class Size(NamedTuple):
    """Of blocks, which all have the same shapes."""

    rounds: int
    clients: int  # of each segment


class Block(NamedTuple):
    """Rounds start .. end - 1 on the devices."""

    start: int
    end: int
    clients: np.ndarray  # [U] whose private state it has, as `Owners.line_up` gives them
    lane: Lane
    private: PyTree  # leaves [U, ...]; where a client is repeated, nobody uses it


class Tools(NamedTuple):
    """How functions are compiled, and arrays put on the devices."""

    jit: Callable[..., Any]  # as `jax.jit`; out: where the results lie, by default on all devices
    everywhere: Any  # the sharding of what every device has; None: the default device
    of_segments: Any  # and of what the devices divide
    put: Callable[[PyTree], PyTree]  # what every process has
    put_segment: Callable[[PyTree], PyTree]  # this process's segment of what the devices divide

    def put_part(self, part: Federation) -> Federation:
        """A part (`parts`), whose pool may be on the devices already."""
        pool: dict[str, Any] = {name: getattr(part, name) for name in POOL}
        rows: dict[str, Any] = {name: getattr(part, name) for name in CLIENT_ROWS}
        nothing: Any = dict.fromkeys((*POOL, *CLIENT_ROWS))
        if isinstance(part.x, np.ndarray):
            pool = self.put_segment(pool)
        rest = self.put(part._replace(**nothing))
        return rest._replace(**pool, **self.put_segment(rows))


class Player:
    """Plays the rounds of a lane as `simulate.play` does, but reads private state from `store`.

    Args:
      program: what is played.
      lane: with the population and the keys on the devices; its federation is not used.
      store: what everybody keeps.
      like: the shapes of everybody's state.
      part: gives the federation of a block's clients.
      size: of the blocks.
      owners: of the clients.
      tools: of the engine.
    """

    def __init__(
        self,
        program: Program,
        lane: Lane,
        store: HostState,
        like: State,
        part: Part,
        size: Size,
        owners: Owners,
        tools: Tools,
    ):
        self._program, self._store, self._like = program, store, like
        nothing: Any = None  # a block has examples of its own
        self._lane = lane._replace(federation=nothing)
        self._part, self._size, self._owners, self._tools = part, size, owners, tools
        self._draw = tools.jit(self._cohorts)
        replaced = partial(_replaced, program.strategy)
        self._replace = tools.jit(replaced, out=tools.of_segments, donate_argnums=0)
        self._ahead = draws_ahead(program, self._lane, like.server)
        self._worker = ThreadPoolExecutor(1)
        self._block: Block | None = None  # the one being played
        self._next: Future | None = None  # the one after it
        self.compiled: Callable[..., Any]  # `simulate.play` for the shapes of a block

    def first_block(self) -> Block:
        """One with the shapes of any."""
        clients = np.arange(min(self._size.clients, len(self._owners.segments[0])))
        return self._read(0, clients)

    def play(self, state: State, sums: Progress, start: int, count: int) -> tuple[State, Progress]:
        """Rounds start .. start + count - 1. The states have only the server's part.

        With a count of 0 the block of round `start` is made ready.
        """
        end = start + count
        while True:
            block = self._block_at(start, state.server)
            rounds = min(end, block.end) - start
            held = State(state.server, block.private)
            after, sums = self.compiled(block.lane, held, sums, np.int32(start), np.int32(rounds))
            self._block = block._replace(private=after.private)
            state, start = State(after.server, ()), start + rounds
            if start == end:
                return state, sums

    def flush(self) -> None:
        """Returns when the store has what everybody keeps after the rounds played."""
        if self._next is not None:
            self._next.result()
        if self._block is not None:
            self._write(self._block)

    def forget(self) -> None:
        """Goes on with what the store has, whatever was played."""
        if self._next is not None:
            self._next.result()
        self._block = self._next = None

    def _block_at(self, start, server):
        """The block of round `start`: the one being played, or the next one."""
        last = self._block
        if last is not None and start < last.end:
            return last
        if self._next is None:
            block = self._submit(last, start, server).result()
        else:
            block = self._patched(self._next.result(), last)
        if self._ahead:
            self._next = self._submit(last, block.end, server)
        return block

    def _submit(self, over, start, server):
        """The task to write the block that is over, if any, and then to read that of `start`."""
        ids = None
        if start < self._program.plan.rounds:
            ids = self._draw(self._lane, server, np.int32(start))
        return self._worker.submit(self._turn, over, start, ids)

    def _turn(self, over, start, ids):
        if over is not None:
            self._write(over)
        return None if ids is None else self._read(start, np.unique(jax.device_get(ids)))

    def _write(self, block):
        ids, first = np.unique(self._owners.own(block.clients), return_index=True)
        private = jax.tree.map(parallel.of_process, to_bits(block.private))
        self._store.write(ids, tree.take(private, first))

    def _read(self, start, clients):
        clients = self._owners.line_up(clients, self._size.clients)
        ids = self._owners.own(clients)
        federation = self._tools.put_part(self._part(ids))
        lane = self._lane._replace(federation=federation, held=self._tools.put(clients))
        private = self._tools.put_segment(self._store.read(ids))
        private = from_bits(private, self._like.private)
        return Block(start, start + self._size.rounds, clients, lane, private)

    def _patched(self, block, last):
        """The block with the private state that clients have after the last one."""
        _, here, there = np.intersect1d(block.clients, last.clients, return_indices=True)
        missing = len(block.clients) - len(here)
        here = np.pad(here, (0, missing), constant_values=len(block.clients))  # in no entry
        places = np.stack([here, np.pad(there, (0, missing))]).astype(np.int32)
        private = self._replace(block.private, last.private, self._tools.put(places))
        return block._replace(private=private)

    def _cohorts(self, lane, server, start):
        """The clients of a block's rounds, [rounds, M]."""

        def cohort(t):
            return simulate.draw(self._program, lane, server, t)[0]

        return jax.lax.map(cohort, start + jnp.arange(self._size.rounds, dtype=jnp.int32))


def _replaced(strategy, new, old, places):
    """`new` with its entries places[0] as the entries places[1] of `old`."""
    here, there = places
    return strategy.put(new, here, strategy.take(old, there))


def draws_ahead(program: Program, lane: Lane, server: PyTree) -> bool:
    """Whether cohorts can be drawn before their rounds: not where they depend on the server."""

    def ids(server, lane):
        return simulate.draw(program, lane, server, jnp.int32(0))[0]

    return not depends(ids, server, lane)


def block_size(
    program: Program, owners: Owners, cohort: int, fitting: int, ahead: bool = True
) -> Size:
    """As many rounds as cohorts fit, at least one and at most `MOST_ROUNDS`.

    No two cohorts of a block need have a client in common, and all may be of one segment, so it has
    room for all of them, or for everybody, in each segment.

    cohort: clients of a round. fitting: `clients_that_fit`. ahead: `draws_ahead`; where it does not
    hold, a block is one round.
    """
    most = MOST_ROUNDS if ahead else 1
    rounds = max(1, min(fitting // cohort, most, program.plan.rounds))
    return Size(rounds, owners.even(min(owners.largest, rounds * cohort)))


def clients_that_fit(state_bytes: int, example_bytes: int, counts: Sequence[np.ndarray]) -> int:
    """How many clients fit in a block, even if they are the largest; at least one.

    Args:
      state_bytes: private state of one.
      example_bytes: of an example; 0 where the examples are on the devices.
      counts: how many examples each client has [C], of each set of rows that is needed.
    """
    fitting = STATE_BYTES // max(1, state_bytes)
    if example_bytes and counts:
        largest = sum(np.sort(count)[::-1].astype(np.int64) for count in counts)
        total = np.cumsum(example_bytes * largest)
        fitting = min(fitting, int(np.searchsorted(total, EXAMPLE_BYTES, side="right")))
    return max(1, fitting)
