"""Plays rounds in blocks, with the clients' private state on the host and a block's on the devices.

A block is a sequence of rounds whose cohorts are drawn in advance, from the same random streams as
in the rounds themselves. The devices hold the private state of the clients in those cohorts and,
where examples are streamed, also their examples. The devices divide them, and each process reads
and writes those of its segment (`owners`). A round computes the same numbers as with the state of
all clients on the devices.

A second thread reads from the host and writes to it, in the order of its tasks: while a block is
played, it writes the results of the previous block and reads the input of the next one. A client
that is both in the next block and in the one being played is read too early; its state is replaced
on the devices when the current block is over.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab.engine import parallel
from fedjax_lab.engine.host import kind_records
from fedjax_lab.engine.host.assignment import Owners
from fedjax_lab.engine.host.host_state import HostState, from_bits, to_bits
from fedjax_lab.engine.host.subsets import Part
from fedjax_lab.engine.placement import Jit
from fedjax_lab.engine.tracing import depends
from fedjax_lab.simulation import by_kind, simulate
from fedjax_lab.simulation.simulate import Lane, Program, Progress
from fedjax_lab.types import PyTree, State

STATE_BYTES = 1 << 24  # most private state in a block; the devices hold up to four blocks
EXAMPLE_BYTES = 1 << 26  # most streamed examples in a block
MOST_ROUNDS = 256  # most rounds of a block


class Size(NamedTuple):
    """Size of a block; all blocks of a run have the same shapes."""

    rounds: int
    clients: int  # in each segment


class Block(NamedTuple):
    """Rounds start .. end - 1, with their arrays on the devices."""

    start: int
    end: int
    clients: np.ndarray  # [U] the clients whose private state it has, as from `Owners.line_up`
    lane: Lane
    private: PyTree  # leaves [U, ...]; the entries of repeated clients are not used


class Player:
    """Plays the rounds of a lane as `simulate.play` does, but reads private state from `store`.

    Args:
      program: the method, plan and strategy to play.
      lane: has the population and the keys on the devices; its federation is not used.
      store: the private state of all clients.
      like: the shapes of the state of all clients.
      part: returns the federation of a block's clients.
      size: the size of the blocks.
      owners: the division of the clients among the processes.
      jit: compiles functions and places arrays.
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
        jit: Jit,
    ):
        self._program, self._store, self._like = program, store, like
        nothing: Any = None  # each block has its own examples
        self._lane = lane._replace(federation=nothing)
        self._part, self._size, self._owners, self._place = part, size, owners, jit.place
        self._put = partial(jit.place.put, compared=False)  # the second thread may do this
        self._draw = jit.wrap(self._cohorts, (), jit.place.strategy.sharding)
        replaced = partial(_replaced, program.strategy)
        self._replace = jit.wrap(replaced, (), jit.place.segment_sharding, donate_argnums=0)
        self._ahead = draws_ahead(program, self._lane, like.server)
        self._worker = ThreadPoolExecutor(1)
        self._block: Block | None = None  # the block being played
        self._next: Future | None = None  # the block after it
        self.compiled: Callable[..., Any]  # `simulate.play` for the shapes of a block

    def first_block(self) -> Block:
        """A block for its shapes, which are those of every block."""
        clients = np.arange(min(self._size.clients, len(self._owners.segments[0])))
        return self._read(0, clients)

    def play(self, state: State, sums: Progress, start: int, count: int) -> tuple[State, Progress]:
        """Plays rounds start .. start + count - 1. The states have only the server's part.

        A count of 0 only loads the block of round `start`.
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
        """Writes the private state of all clients after the rounds played to the store."""
        if self._next is not None:
            self._next.result()
        if self._block is not None:
            self._write(self._block)

    def forget(self) -> None:
        """Discards the blocks on the devices; the next round starts from the store's state."""
        if self._next is not None:
            self._next.result()
        self._block = self._next = None

    def _block_at(self, start, server):
        """The block of round `start`: the current or the next one."""
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
        """Submits a task that writes the finished block, if any, then reads the one of `start`."""
        ids = None
        if start < self._program.plan.rounds:
            ids = self._draw(self._lane, server, np.int32(start))
        return self._worker.submit(self._turn, over, start, ids)

    def _turn(self, over, start, ids):
        if over is not None:
            self._write(over)
        return None if ids is None else self._read(start, np.unique(jax.device_get(ids)))

    def _write(self, block):
        ids, first = np.unique(self._owners.share_of_process(block.clients), return_index=True)
        private = jax.tree.map(parallel.local_part, to_bits(block.private))
        private = kind_records.out_of_segment(private, self._owners)
        self._store.write(ids, by_kind.take(private, first))

    def _read(self, start, clients):
        clients = self._owners.line_up(clients, self._size.clients)
        ids = self._owners.share_of_process(clients)
        federation = self._place.put_part(self._part(ids))
        lane = self._lane._replace(federation=federation, held=self._put(clients))
        private = kind_records.in_segment(self._store.read(ids), self._owners)
        private = self._place.put_segment(private)
        private = from_bits(private, self._like.private)
        return Block(start, start + self._size.rounds, clients, lane, private)

    def _patched(self, block, last):
        """The block, with the states that its clients have after the last block."""
        _, here, there = np.intersect1d(block.clients, last.clients, return_indices=True)
        missing = len(block.clients) - len(here)
        here = np.pad(here, (0, missing), constant_values=len(block.clients))  # out of range
        places = np.stack([here, np.pad(there, (0, missing))]).astype(np.int32)
        private = self._replace(block.private, last.private, self._put(places))
        return block._replace(private=private)

    def _cohorts(self, lane, server, start):
        """The cohorts of a block's rounds: ids of clients [rounds, M]."""

        def cohort(t):
            return simulate.draw(self._program, lane, server, t)[0]

        return jax.lax.map(cohort, start + jnp.arange(self._size.rounds, dtype=jnp.int32))


def _replaced(strategy, new, old, places):
    """`new` with its entries places[0] replaced by the entries places[1] of `old`."""
    here, there = places
    return by_kind.replaced(strategy, new, here, old, there)


def draws_ahead(program: Program, lane: Lane, server: PyTree) -> bool:
    """Whether cohorts can be drawn in advance: not if they depend on the server's state."""

    def ids(server, lane):
        return simulate.draw(program, lane, server, jnp.int32(0))[0]

    return not depends(ids, server, lane)


def block_size(
    program: Program, owners: Owners, cohort: int, fitting: int, ahead: bool = True
) -> Size:
    """The size of blocks: as many rounds as cohorts fit, at least one and at most `MOST_ROUNDS`.

    The cohorts of a block may be disjoint, and all their clients may be of one segment. Therefore
    each segment has room for all clients of all these cohorts, or for the whole segment if that is
    smaller.

    cohort: clients of a round. fitting: from `clients_that_fit`. ahead: from `draws_ahead`; if
        false, a block is one round.
    """
    most = MOST_ROUNDS if ahead else 1
    rounds = max(1, min(fitting // cohort, most, program.plan.rounds))
    return Size(rounds, owners.even(min(owners.largest, rounds * cohort)))


def clients_that_fit(state_bytes: int, example_bytes: int, counts: Sequence[np.ndarray]) -> int:
    """How many clients fit in a block, even if they are the largest ones; at least one.

    Args:
      state_bytes: bytes of one client's private state.
      example_bytes: bytes of an example; 0 if the examples are on the devices.
      counts: for each set of rows that is needed, how many examples each client has [C].
    """
    fitting = STATE_BYTES // max(1, state_bytes)
    if example_bytes and counts:
        largest = sum(np.sort(count)[::-1].astype(np.int64) for count in counts)
        total = np.cumsum(example_bytes * largest)
        fitting = min(fitting, int(np.searchsorted(total, EXAMPLE_BYTES, side="right")))
    return max(1, fitting)
