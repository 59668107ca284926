"""Rounds with the clients of a block on the devices, and everybody's private state on the host.

A block is some rounds whose cohorts are drawn ahead, from the streams that draw them in the rounds
themselves. On the devices are the private state, and where examples are streamed the examples, of
the clients in those cohorts. What a round computes is what it computes with everybody there.

One thread besides the main one reads from the host and writes to it, in the order of its tasks:
while a block is played, it writes what the block before has left, and reads what the next one
needs. It reads clients of the next block that are in the block being played as well too early; they
are replaced on the devices when that block is over.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import simulate, tree
from fedjax_lab.host_state import HostState, from_bits, to_bits
from fedjax_lab.parts import Part
from fedjax_lab.simulate import Lane, Program, Progress
from fedjax_lab.tracing import depends
from fedjax_lab.types import PyTree, State

STATE_BYTES = 1 << 24  # of the private state in a block; the devices hold up to four blocks
EXAMPLE_BYTES = 1 << 26  # of streamed examples in a block
MOST_ROUNDS = 256  # of a block


class Size(NamedTuple):
    """Of blocks, which all have the same shapes."""

    rounds: int
    clients: int


class Block(NamedTuple):
    """Rounds start .. end - 1 on the devices."""

    start: int
    end: int
    clients: np.ndarray  # [N] whose private state it has, ascending
    lane: Lane
    private: PyTree  # leaves [U, ...]; those behind the first N are copies that nobody uses


class Tools(NamedTuple):
    """How functions are compiled, and arrays put on the devices."""

    jit: Callable[..., Any]
    put: Callable[[PyTree], PyTree]


class Player:
    """Plays the rounds of a lane as `simulate.play` does, but reads private state from `store`.

    Args:
      program: what is played.
      lane: with the population and the keys on the devices; its federation is not used.
      store: what everybody keeps.
      like: the shapes of everybody's state.
      part: gives the federation of a block's clients.
      size: of the blocks.
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
        tools: Tools,
    ):
        self._program, self._store, self._like = program, store, like
        nothing: Any = None  # a block has examples of its own
        self._lane = lane._replace(federation=nothing)
        self._part, self._size, self._put = part, size, tools.put
        self._draw = tools.jit(self._cohorts)
        self._replace = tools.jit(_replaced, donate_argnums=0)
        self._ahead = draws_ahead(program, self._lane, like.server)
        self._worker = ThreadPoolExecutor(1)
        self._block: Block | None = None  # the one being played
        self._next: Future | None = None  # the one after it
        self.compiled: Callable[..., Any]  # `simulate.play` for the shapes of a block

    def first_block(self) -> Block:
        """One with the shapes of any."""
        return self._read(0, np.arange(self._size.clients))

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
        count = len(block.clients)
        private = jax.device_get(to_bits(block.private))
        self._store.write(block.clients, tree.take(private, slice(count)))

    def _read(self, start, clients):
        ids = np.pad(clients, (0, self._size.clients - len(clients)), mode="edge").astype(np.int32)
        lane = self._lane._replace(federation=self._part(ids), held=ids)
        lane, private = self._put((lane, self._store.read(ids)))
        private = from_bits(private, self._like.private)
        return Block(start, start + self._size.rounds, clients, lane, private)

    def _patched(self, block, last):
        """The block with the private state that clients have after the last one."""
        common, here, there = np.intersect1d(
            block.clients, last.clients, assume_unique=True, return_indices=True
        )
        if not len(common):
            return block
        missing = self._size.clients - len(common)
        here = np.pad(here, (0, missing), constant_values=self._size.clients)  # in no entry
        private = self._replace(block.private, last.private, here, np.pad(there, (0, missing)))
        return block._replace(private=private)

    def _cohorts(self, lane, server, start):
        """The clients of a block's rounds, [rounds, M]."""

        def cohort(t):
            return simulate.draw(self._program, lane, server, t)[0]

        return jax.lax.map(cohort, start + jnp.arange(self._size.rounds, dtype=jnp.int32))


def _replaced(new, old, here, there):
    """`new` with its entries `here` as the entries `there` of `old`."""
    return jax.tree.map(lambda a, b: a.at[here].set(b[there], mode="drop"), new, old)


def draws_ahead(program: Program, lane: Lane, server: PyTree) -> bool:
    """Whether cohorts can be drawn before their rounds: not where they depend on the server."""

    def ids(server, lane):
        return simulate.draw(program, lane, server, jnp.int32(0))[0]

    return not depends(ids, server, lane)


def block_size(
    program: Program, num_clients: int, cohort: int, fitting: int, ahead: bool = True
) -> Size:
    """As many rounds as cohorts fit, at least one and at most `MOST_ROUNDS`.

    No two cohorts of a block need have a client in common, so it has room for all of them, or for
    everybody.

    cohort: clients of a round. fitting: `clients_that_fit`. ahead: `draws_ahead`; where it does not
    hold, a block is one round.
    """
    most = MOST_ROUNDS if ahead else 1
    rounds = max(1, min(fitting // cohort, most, program.plan.rounds))
    return Size(rounds, min(num_clients, rounds * cohort))


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
