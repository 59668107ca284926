"""Rounds on blocks of clients give the numbers of rounds with all clients on the devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from slow_cases import slow_but

from fedjax_lab import blocks, parts, sampling, simulate, streams
from fedjax_lab.host_state import HostState, from_bits, to_bits
from fedjax_lab.owners import Owners
from fedjax_lab.types import State

KEYS = streams.make_keys(jax.random.key(0))
ALONE = Owners((0, toys.C))
WHOLE = jax.tree.map(np.asarray, toys.FEDERATION)


def make_part(stream, clients):
    if stream:
        return parts.with_examples(WHOLE, ["train"], clients, 0, ALONE)
    return parts.of_rows(toys.FEDERATION, WHOLE, ["train"], ALONE)


def make_player(method, rounds, stream=False, folder=None, plan=toys.PLAN, cohort=5):
    """A player and the first state."""
    program = simulate.Program(method, plan, toys.VECTORIZED)
    lane = simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS)
    state = simulate.init(method, KEYS, toys.C)
    store = HostState(state.private, toys.C, folder)
    store.write(np.arange(toys.C), to_bits(state.private))
    size = blocks.Size(rounds, min(toys.C, rounds * cohort))
    part = make_part(stream, size.clients)
    player = blocks.Player(program, lane, store, state, part, size, ALONE, toys.TOOLS)
    player.compiled = jax.jit(partial(simulate.play, program), donate_argnums=(1, 2))
    return player, store, State(jax.tree.map(jnp.copy, state.server), ())


def complete_state(player, store, state, like):
    player.flush()
    return State(state.server, from_bits(store.read(np.arange(toys.C)), like.private))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("rounds", slow_but([2], [1, 2, 4]))
def test_blocks_that_share_clients_do_not_change_the_numbers(rounds, stream):
    """With five of eight clients in each round, consecutive blocks share clients. Calls play any
    number of rounds, with a flush after each, as before an evaluation or a checkpoint."""
    method = toys.make("scaffold")
    expected, sums_expected = toys.player(method)(KEYS, 0, 6)
    player, store, state = make_player(method, rounds, stream)
    sums = simulate.no_progress()
    for start, count in ((0, 0), (0, 1), (1, 3), (4, 0), (4, 2)):
        state, sums = player.play(state, sums, start, count)
        player.flush()
    toys.same(complete_state(player, store, state, expected), expected)
    toys.same(sums, sums_expected)


@pytest.mark.slow
def test_a_cohort_may_depend_on_the_current_server_state():
    method = toys.make("moon")

    def sample(key, server, population, m):
        bits = jax.lax.bitcast_convert_type(jax.tree.leaves(server.params)[0], jnp.uint32)
        return sampling.by_size(jax.random.fold_in(key, jnp.sum(bits)), server, population, m)

    method = method._replace(sample=sample)
    expected, _ = toys.player(method)(KEYS, 0, 4)
    player, store, state = make_player(method, 1)
    state, _ = player.play(state, simulate.no_progress(), 0, 4)
    toys.same(complete_state(player, store, state, expected), expected)


def test_a_block_has_as_many_rounds_as_memory_allows(monkeypatch):
    """Private states and examples of the largest clients limit it; it has at least one round."""
    monkeypatch.setattr(blocks, "STATE_BYTES", 100)
    monkeypatch.setattr(blocks, "EXAMPLE_BYTES", 60)
    counts = [np.array([1, 5, 2]), np.array([0, 3, 4])]  # sorted and added: 9, 5 and 1
    assert blocks.clients_that_fit(10, 0, []) == 10
    assert blocks.clients_that_fit(10, 4, counts) == 3
    assert blocks.clients_that_fit(10, 5, counts) == 1
    assert blocks.clients_that_fit(1000, 5, counts) == 1
    program = simulate.Program(toys.make("fedavg"), toys.PLAN, toys.VECTORIZED)
    assert blocks.block_size(program, Owners((0, 1000)), 5, 12) == (2, 10)
    assert blocks.block_size(program, ALONE, 5, 12) == (2, 8)
    assert blocks.block_size(program, Owners((0, 1000)), 5, 3) == (1, 5)
    assert blocks.block_size(program, Owners((0, 1000)), 5, 10**6) == (toys.PLAN.rounds, 30)
