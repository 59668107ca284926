"""The compiled functions of a run, and what its seeds have on the devices."""

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import evaluate, parallel, processes, simulate, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array, Client, Federation, Method, Plan, Stage, State

BLOCK_SECONDS = 1.0  # rounds between two looks at the keyboard
STAGE = 1 << 31  # beyond the numbers that methods fold into the stream of first weights


class Joint(NamedTuple):
    """What makes several runs, which differ in a few numbers alone, one computation."""

    settings: list[dict[str, float]]  # [seed] the numbers of its run, by dotted key of the config
    vary: Callable[[dict[str, Array]], tuple[Method, dict[str, Any]]]
    # settings -> the method, and fields of the plan that replace the plan's own


class Simulation(NamedTuple):
    """What the engine plays. Federations [seed] share one pool of examples.

    `training` differs from `federations` for a pooled method only: one client holds everything.
    """

    seeds: list[int]
    federations: list[Federation]
    training: list[Federation]
    num_classes: int
    stages: tuple[Stage, ...]  # a plain method is one; their rounds sum to the plan's
    plan: Plan
    strategy: parallel.Strategy
    vectorized_seeds: bool = False
    embeddings: Callable[[], Any] | None = None  # () -> embedding.Embeddings, for embedded stages
    joint: Joint | None = None


class Lane(NamedTuple):
    """What one call of a compiled function sees: one seed, or all of them on a leading axis."""

    settings: dict[str, Array]  # in which the runs of a joint one differ, by dotted key
    keys: simulate.Keys
    own: Federation
    people: Client
    training: Federation
    trainees: Client


class Engine:
    """Plays rounds and scores them. All seeds advance together, in one call or one by one."""

    def __init__(self, simulation: Simulation):
        began = time.perf_counter()
        self.simulation = simulation
        self.together = simulation.vectorized_seeds and len(simulation.seeds) > 1
        self.lanes = self._images = self._lanes()
        self.plan = simulation.plan
        self.ends = list(itertools.accumulate(stage.rounds for stage in simulation.stages))
        self.sums = self._no_progress()
        self.played = 0  # rounds
        self.seconds = 0.0  # spent in them, and in nothing else
        self.bytes = np.zeros((len(simulation.seeds), 2))  # up and down, of the rounds played
        self.evaluate_seconds = 0.0
        self.session = _Session(0, 0.0, np.zeros(3))
        self._seen = ()  # what a view gives, which differs between seeds
        self.stage_number, self.states = -1, [None] * len(self.lanes)
        self.compile_seconds = time.perf_counter() - began  # of all that happens once
        self.first_facts = self.next_stage()

    def compile(self) -> None:
        """Compiles a block of rounds and the evaluation of this stage, once for all seeds.

        Seeds whose states differ in shape have programs of their own. Each program then plays a
        block of no rounds: what the first call of a program costs is no time of training.
        """
        began = time.perf_counter()
        self._look()
        programs = {}
        for lane, state, sums in zip(self.lanes, self.states, self.sums, strict=True):
            if (shapes := _shapes(state)) not in programs:
                programs[shapes] = self._compile(lane, state, sums)
        self._programs = [programs[_shapes(state)] for state in self.states]
        self._play(0)
        self.compile_seconds += time.perf_counter() - began

    def _compile(self, lane, state, sums):
        strategy, number = self.simulation.strategy, np.int32(0)

        def play(settings, *args):
            return simulate.play(*self._round(settings), strategy, *args)

        def score(settings, *args):
            return evaluate.score(*self._round(settings), strategy, *args)

        axes = 0, self._axes(lane.own), 0, 0, 0
        block = self._jit(play, (*axes, 0, None, None), donate_argnums=(4, 5))
        args = lane.settings, lane.training, lane.trainees, lane.keys, state, sums, number, number
        block = block.lower(*args).compile()
        if (sizes := block.memory_analysis()) is not None:
            parallel.check_memory(sizes.temp_size_in_bytes, "a round needs")
        args = lane.settings, lane.own, lane.people, lane.keys, state, number
        scored = self._jit(score, (*axes, None)).lower(*args).compile()
        return _Programs(block, scored, self._message_bytes(self.stage.method, lane, state))

    def _round(self, settings):
        """Method and plan of the stage, of a joint run with these settings."""
        if not settings:
            return self.stage.method, self.plan
        method, fields = self.simulation.joint.vary(settings)
        return method, self.plan._replace(**fields)

    @property
    def stage(self) -> Stage:
        """The one under way."""
        return self.simulation.stages[self.stage_number]

    @property
    def stage_is_over(self) -> bool:
        """Whether the next round belongs to another stage."""
        return self.played == self.ends[self.stage_number] < self.ends[-1]

    def next_stage(self, facts: list[dict] | None = None) -> list[dict]:
        """Begins the next (or first) stage with these facts of each lane, or what `prepare` finds.

        Returns them. Compile afterwards.
        """
        began = time.perf_counter()
        self.stage_number += 1
        self._stage_session = self.session
        facts = self._prepare() if facts is None else facts
        if (begin := self.stage.start) is None:
            self.states = self._first_states()
        else:

            def start(keys, last, facts):
                key = self._keys(keys)[1] if self.stage_number else keys.init
                return begin(key, self._num_clients, last, facts)

            run = self._jit(start, (0, 0, 0))
            lanes = zip(self.lanes, self.states, facts, strict=True)
            self.states = [run(lane.keys, state, mine) for lane, state, mine in lanes]
        if self.stage.frozen is not None:
            sent = [self._frozen_bytes(state) for state in self.states]
            self.bytes = self.bytes + [[0, self._num_clients * size] for size in sent]
        jax.block_until_ready(self.states)
        self.compile_seconds += time.perf_counter() - began
        return facts

    def _frozen_bytes(self, state):
        """Of what a stage sends to each client of one seed, once."""
        return tree.num_bytes(jax.eval_shape(self.stage.frozen, self._one_seed(state).server))

    def _look(self):
        """Lanes and plan of this stage: what stands in the place of an example, what is frozen."""
        stage, self.lanes, self.plan = self.stage, self._images, self.simulation.plan
        self._seen = ()
        if stage.batch_size:
            size = min(stage.batch_size, self.lanes[0].training.train.shape[-1])
            self.plan = self.plan._replace(batch_size=size, equal_steps=False)
        if stage.embedded:
            x = parallel.put(self.simulation.embeddings().examples, self._sharding)
            none = dict.fromkeys(("validation", "test", "world", "unseen"))
            self.lanes = [_with_examples(lane, x=x, **_PLAIN, **none) for lane in self._images]
            self.plan = self.plan._replace(augment=None)
        if stage.frozen is not None:
            freeze = self._jit(lambda state: stage.frozen(state.server), (0,))
            self._seen = ("frozen",)
            lanes = zip(self._images, self.states, strict=True)
            self.lanes = [_with_examples(lane, frozen=freeze(state)) for lane, state in lanes]
        if stage.view is not None:
            self._look_through_view()

    def _look_through_view(self):
        """The view is cached where the stage allows it."""
        stage = self.stage
        through = self.plan._replace(view=stage.view)
        if not (self.plan.augment is None or stage.view_of_clean):
            self.plan = through
            return
        view = partial(simulate.view_pool, through, self.simulation.strategy)
        view = self._jit(view, (self._axes(self.lanes[0].own),))
        seen = [view(lane.own) for lane in self.lanes]
        self._seen, self.plan = ("x",), self.plan._replace(augment=None)
        lanes = zip(self._images, seen, strict=True)
        self.lanes = [_with_examples(lane, x=x, **_PLAIN) for lane, x in lanes]

    def _axes(self, federation):
        """What differs between seeds: the rows that clients own, and what a view gives."""
        return _seed_axes(federation)._replace(**dict.fromkeys(self._seen, 0))

    def _prepare(self):
        if self.stage.prepare is None:
            return [{} for _ in self.lanes]
        streams = [simulate.make_keys(jax.random.key(seed)) for seed in self.simulation.seeds]
        people = self._each_seed([lane.people for lane in self.lanes])
        found = [
            self.stage.prepare(self._keys(keys)[0], *jax.device_get((mine, state)))
            for keys, mine, state in zip(streams, people, self.final_states(), strict=True)
        ]
        found = [{name: np.asarray(fact) for name, fact in facts.items()} for facts in found]
        found = processes.of_first(lambda: found)  # hosts may differ in the last bit
        if not self.together:
            return found
        if len({_shapes(facts) for facts in found}) > 1:
            raise BadInput(
                f"stage {self.stage.name} differs in size between seeds; use"
                " config.engine.seeds=sequential"
            )
        return [jax.tree.map(lambda *a: np.stack(a), *found)]

    def _keys(self, keys):
        """For `prepare` and `start` of this stage."""
        return jax.random.split(jax.random.fold_in(keys.init, STAGE + self.stage_number))

    @property
    def _sharding(self):
        return self.simulation.strategy.sharding

    @property
    def _num_clients(self):
        return self.simulation.federations[0].train.shape[0]

    def _first_states(self):
        def first(settings, keys):
            return simulate.init(self._round(settings)[0], keys, self._num_clients)

        init = self._jit(first, (0, 0))
        size = tree.num_bytes(jax.eval_shape(init, self.lanes[0].settings, self.lanes[0].keys))
        parallel.check_memory(size, "the model and the clients' states need")
        return [init(lane.settings, lane.keys) for lane in self.lanes]

    def play(self, at_most: int) -> None:
        """A block of rounds, about a second long."""
        played, seconds, totals = self.session
        earlier = self._stage_session
        new = played - earlier.played
        pace = new / (seconds - earlier.seconds) if new else 0.0
        count = processes.of_first(lambda: int(np.clip(pace * BLOCK_SECONDS, 1, at_most)))
        began = time.perf_counter()
        self._play(count)
        took = time.perf_counter() - began
        self.session = _Session(played + count, seconds + took, totals)
        self.played += count
        self.seconds += took
        sent = [p.message_bytes for p in self._programs]
        self.bytes = self.bytes + count * np.array(sent)  # vectorised seeds send alike

    def _play(self, count):
        for i, lane in enumerate(self.lanes):
            args = lane.settings, lane.training, lane.trainees, lane.keys
            args = *args, self.states[i], self.sums[i], np.int32(self.played), np.int32(count)
            self.states[i], self.sums[i] = self._programs[i].play(*args)
        jax.block_until_ready(self.sums)

    def progress(self) -> simulate.Progress:
        """The sums since the last evaluation, [seeds] each."""
        sums = [jax.tree.map(np.atleast_1d, s) for s in jax.device_get(self.sums)]
        return jax.tree.map(lambda *a: np.concatenate(a), *sums)

    def evaluate(self) -> list[evaluate.Scores]:
        """The scores of each seed after the rounds played so far; starts new sums."""
        self.session = self.session._replace(totals=self.session.totals + self._done())
        self.sums = self._no_progress()
        began = time.perf_counter()
        scores = []
        for lane, state, programs in zip(self.lanes, self.states, self._programs, strict=True):
            args = lane.settings, lane.own, lane.people, lane.keys, state, np.int32(self.played)
            scores.append(jax.device_get(programs.score(*args)))
        self.evaluate_seconds += time.perf_counter() - began
        return self._each_seed(scores)

    def _message_bytes(self, method, lane, state):
        """Bytes (up, down) of one round of one seed, all clients that take part."""
        state, trainees = self._one_seed((state, lane.trainees))
        axes = self._axes(lane.training)
        federation = Federation(
            *(
                self._one_seed(a) if axis == 0 else a
                for a, axis in zip(lane.training, axes, strict=True)
            )
        )
        clients = simulate.cohort_size(method, self.plan, trainees, state)
        up, down = simulate.message_bytes(method, self.plan, federation, trainees, state)
        return clients * up, clients * down

    def _one_seed(self, a):
        """The shapes of one seed's part of what a lane has."""
        if not self.together:
            return a
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), a)

    def recorded(self) -> list[dict]:
        """What the method records of the state, as nested lists by name; for each seed."""
        if self.stage.method.record is None:
            return [{} for _ in self.simulation.seeds]
        settings = self._each_seed([lane.settings for lane in self.lanes])
        arrays = [
            jax.device_get(self._round(mine)[0].record(state))
            for mine, state in zip(settings, self.final_states(), strict=True)
        ]
        return [{name: np.asarray(a).tolist() for name, a in each.items()} for each in arrays]

    def final_states(self) -> list[State]:
        """The state of each seed."""
        return self._each_seed(self.states)

    def saved(self):
        """All that a checkpoint needs to go on with identical numbers."""
        return self.states, self.sums, np.array([self.seconds]), self.bytes

    def go_on(self, saved, played: int) -> None:
        """Takes back what `saved` gave after so many rounds, in the stage where that was."""
        self.states, self.sums, (self.seconds,), self.bytes = saved
        self.played = played
        # What an earlier process did since the last evaluation is not this session's.
        self.session = self.session._replace(totals=-self._done())

    def _done(self):
        sums = self.progress()
        return np.array([sums.examples.sum(), sums.steps.sum(), sums.lane_steps.sum()])

    def _lanes(self):
        simulation = self.simulation
        own, training = simulation.federations, simulation.training
        streams = [simulate.make_keys(jax.random.key(seed)) for seed in simulation.seeds]
        settings = simulation.joint.settings if simulation.joint else [{}] * len(streams)
        keys = list(zip(settings, streams, strict=True))
        if self.together:
            own, training, keys = (
                [_stack(own)],
                [_stack(training)],
                [jax.tree.map(lambda *k: jnp.stack(k), *keys)],
            )
        population = partial(simulate.population, num_classes=simulation.num_classes)
        people = self._jit(population, (_seed_axes(own[0]),))
        lanes = []
        pool = parallel.put(own[0]._replace(**dict.fromkeys(_ROWS)), self._sharding)
        for mine, *pair in zip(keys, own, training, strict=True):
            rows = [{name: getattr(f, name) for name in _ROWS} for f in pair]
            mine, rows = parallel.put((mine, rows), self._sharding)
            held, train = (pool._replace(**r) for r in rows)  # one pool for all seeds
            lanes.append(Lane(*mine, held, people(held), train, people(train)))
        return lanes

    def _no_progress(self):
        def one(lane):  # never shared between lanes: their memory is given away
            none = simulate.no_progress()
            if self.together:
                none = jax.tree.map(lambda a: jnp.stack([a] * len(self.simulation.seeds)), none)
            return parallel.put(none, self._sharding)

        return [one(lane) for lane in self.lanes]

    def _jit(self, function, seed_axes, **options):
        function = jax.vmap(function, seed_axes) if self.together else function
        return jax.jit(function, out_shardings=self._sharding, **options)

    def _each_seed(self, trees):
        if not self.together:
            return list(trees)
        seeds = range(len(self.simulation.seeds))
        return [jax.tree.map(lambda a, i=i: a[i], trees[0]) for i in seeds]


def _with_examples(lane: Lane, **changes) -> Lane:
    own, training = (f._replace(**changes) for f in (lane.own, lane.training))
    return lane._replace(own=own, training=training)


class _Programs(NamedTuple):
    """What one stage runs."""

    play: Callable
    score: Callable
    message_bytes: tuple[int, int]  # up and down, of one round of one seed


class _Session(NamedTuple):
    """What this process has done, for its rates."""

    played: int
    seconds: float
    totals: np.ndarray  # examples, steps, lane steps; over all seeds


def _shapes(a):
    leaves, tree = jax.tree.flatten(a)
    return tree, *((x.shape, str(x.dtype)) for x in leaves)


_PLAIN = {"center": np.float32(0), "scale": np.float32(1)}  # of examples that are no images
_ROWS = ("train", "validation", "test")  # what differs between seeds
_AXES = Federation(*(0 if name in _ROWS else None for name in Federation._fields))


def _seed_axes(federation: Federation) -> Federation:
    """Only the rows that clients own differ between seeds."""
    return Federation(
        *(None if a is None else axis for a, axis in zip(federation, _AXES, strict=True))
    )


def _stack(federations: list[Federation]) -> Federation:
    stacked = [
        rows[0] if axis is None or rows[0] is None else jnp.stack(rows)
        for axis, rows in zip(_AXES, zip(*federations, strict=True), strict=True)
    ]
    return Federation(*stacked)
