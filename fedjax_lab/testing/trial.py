"""Trains and scores a method on the toy federation."""

import functools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import streams, tree
from fedjax_lab.engine import parallel, shards
from fedjax_lab.simulation import evaluate, outline, simulate
from fedjax_lab.simulation.client_work import work_sets
from fedjax_lab.simulation.population import make_population
from fedjax_lab.simulation.simulate import Lane, Program
from fedjax_lab.testing.toy import PLAN, C, K, as_rows, toy_federation, with_validation
from fedjax_lab.types import Client, Federation, Method, Plan, State

SEEDS = (5, 0)
ROUNDS = PLAN.rounds

# Options of the compiler for programs that run for milliseconds.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def quickly(jitted: Any, *args: Any) -> Any:
    """Compiles a jitted function for these arguments, on a CPU with little optimization."""
    options = QUICK if jax.default_backend() == "cpu" else None
    return jitted.lower(*args).compile(compiler_options=options)


def keys_of(seed: int) -> streams.Keys:
    """The random streams of one seed."""
    return streams.make_keys(jax.random.key(seed))


@jax.jit
def exchanged(a: Any) -> Any:
    """Arrays [seeds, ...] with the two seeds in the place of each other."""
    return jax.tree.map(lambda a: a[::-1], a)


def pooled(
    method: Method, federation: Federation | None = None, plan: Plan = PLAN
) -> tuple[Federation, Client, Plan]:
    """The federation (by default the toy's) as a method trains on it, its clients, and the plan.

    A pooled method gets one client with all examples; one with `validation` gets validation rows.
    """
    federation = toy_federation() if federation is None else federation
    if method.validation:
        federation = with_validation(federation)
    if method.extra.pooled:
        all_rows = np.sort(np.asarray(federation.train).reshape(1, -1))[:, ::-1]
        federation = federation._replace(train=as_rows(all_rows))
        plan = plan._replace(cohort=1)
    return federation, make_population(federation, K), plan


class Trial:
    """Plays a method of one stage with two vectorized seeds, in one program for all calls."""

    def __init__(self, method: Method):
        self.method = method
        self.federation, self.population, self.plan = pooled(method)
        self.program = Program(method, self.plan, parallel.vectorized())
        self.keys = jax.vmap(streams.make_keys)(jnp.stack([jax.random.key(s) for s in SEEDS]))

    def lane(self, keys: streams.Keys) -> Lane:
        """What a seed with these random streams trains on."""
        return Lane(self.federation, self.population, keys)

    def start(self) -> Any:
        """The states of both seeds before the first round."""
        return self._first(self.keys)

    @functools.cached_property
    def _first(self):
        return jax.jit(jax.vmap(lambda keys: simulate.init(self.method, keys, C)))

    def play(self, start: int, count: int, state: Any) -> tuple[Any, Any]:
        """Plays `count` rounds from round `start` on; returns states and sums [seeds].

        state: the states of both seeds before these rounds.
        """
        return self._compiled(self.keys, state, jnp.int32(start), jnp.int32(count))

    def swapped(self, start: int, count: int, state: Any) -> tuple[Any, Any]:
        """As `play`, by the same program, but each seed is computed in the place of the other."""
        keys, state = exchanged((self.keys, state))
        return exchanged(self._compiled(keys, state, jnp.int32(start), jnp.int32(count)))

    @functools.cached_property
    def _compiled(self):
        """The compiled rounds; states that were saved and read would make `jit` compile again."""
        play = jax.jit(jax.vmap(self.play_seed, (0, 0, None, None)))
        return quickly(play, self.keys, self.start(), jnp.int32(0), jnp.int32(0))

    @functools.cached_property
    def played(self) -> tuple[Any, Any]:
        """States and sums after all rounds of the plan."""
        return self.play(0, ROUNDS, self.start())

    @functools.cached_property
    def message_bytes(self) -> tuple[int, int]:
        """The bytes (up, down) of the messages of one client in one round."""
        program, _, _ = outline.first_round(self.program, self.federation, self.population)
        return program.message_bytes

    def play_seed(
        self, keys: streams.Keys, state: State, start: Any, count: Any
    ) -> tuple[Any, Any]:
        """As `play`, for one seed with these random streams."""
        lane = self.lane(keys)
        return simulate.play(self.program, lane, state, simulate.no_progress(), start, count)

    def alone(self, devices: int, count: int) -> tuple[State, simulate.Progress]:
        """Plays the last seed alone, two clients at a time; returns its state and sums.

        devices: the number of devices; if several, they divide the state and the examples.
        """
        strategy, federation = parallel.chunked(2), self.federation
        if devices > 1 and len(self.federation.train) > 1:
            mesh = parallel.make_mesh(devices)
            strategy = parallel.on_mesh(mesh, strategy, by_client=True, by_row=True)
            for name in work_sets(self.method):
                (rows,) = shards.deal([jax.device_get(getattr(federation, name))], devices)
                federation = federation._replace(**{name: jax.tree.map(jnp.asarray, rows)})
        program = self.program._replace(strategy=strategy)
        lane = Lane(federation, self.population, keys_of(SEEDS[-1]))
        state, sums = tree.take(self.start(), -1), simulate.no_progress()
        first, number = jnp.int32(0), jnp.int32(count)
        play = jax.jit(partial(simulate.play, program))
        return quickly(play, lane, state, sums, first, number)(lane, state, sums, first, number)

    def scores(self, states: Any, after: int) -> dict:
        """Evaluates the last seed after `after` rounds; states: of all seeds."""
        federation, population, plan = pooled(self.method.having(pooled=False))
        lane = Lane(federation, population, keys_of(SEEDS[-1]))
        state, played = tree.take(states, -1), jnp.int32(after)
        score = jax.jit(partial(evaluate.score, self.program._replace(plan=plan)))
        scores = quickly(score, lane, state, played)(lane, state, played)
        return evaluate.summarize(scores, ("only",))
