"""The compiled functions of a run, and the arrays of its seeds on the devices."""

import itertools
import operator
import tempfile
import time
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import sampling, streams, tree
from fedjax_lab.engine import flops, parallel, processes
from fedjax_lab.engine.host.blocks import Tools
from fedjax_lab.engine.host.host_state import HostState, from_bits, to_bits
from fedjax_lab.engine.host.hosted import Host, Hosted, Seed
from fedjax_lab.engine.host.owners import divide
from fedjax_lab.engine.placement import Placement
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation import contract, evaluate, simulate
from fedjax_lab.simulation.simulate import Lane, Program
from fedjax_lab.types import (
    CLIENT_ROWS,
    POOL,
    ROWS,
    Array,
    Federation,
    Plan,
    PyTree,
    Stage,
    State,
    View,
)

BLOCK_SECONDS = 1.0  # duration of a block of rounds, between which interrupts are checked


class Simulation(NamedTuple):
    """The input of the engine. Federations [seed] share one pool of examples.

    `training` differs from `federations` only for a pooled method: one client holds all examples.
    """

    seeds: list[int]
    federations: list[Federation]
    training: list[Federation]
    num_classes: int
    stages: tuple[Stage, ...]  # one for a plain method; their rounds sum to the plan's
    plan: Plan
    strategy: parallel.Strategy
    placement: str = ""  # a text that says where state and examples are kept, and why
    vectorized_seeds: bool = False
    precision: str | None = None  # of float32 products, as JAX names it; None: JAX's default
    embeddings: Callable[[], Any] | None = None  # () -> embedding.Embeddings, for embedded stages
    settings: list[dict[str, PyTree]] | None = None  # [seed] those in which seeds differ, by name,
    # besides their random numbers; the seeds may belong to several runs
    variant: Callable[[dict[str, PyTree]], tuple[tuple[Stage, ...], dict[str, Any]]] | None = None
    # settings -> the stages of a seed, and its fields of the plan
    start: list[State] | None = None  # [seed] initial states; None: those of the method's `init`
    scheduled: Callable[[int, dict[str, PyTree], Array], dict[str, PyTree]] | None = None
    # (number of the stage, settings of a seed, round) -> the settings in that round; None: no
    # setting depends on the round
    host: Host | None = None  # what is kept on the host; None: everything is on the devices


class Lanes(NamedTuple):
    """The input of one call of a compiled function: one seed, or all seeds on a leading axis."""

    settings: dict[str, PyTree]  # `Simulation.settings`
    training: Lane
    scoring: Lane


class Programs(NamedTuple):
    """The programs of one stage, lowered or compiled; functions as they are if jit is disabled."""

    play: Any  # (settings, lane, state, sums, start, count): a block of rounds
    score: Any  # (settings, lane, state, t): the evaluation; a list of several for a hosted lane
    clients: int  # in a round of one seed
    message_bytes: tuple[int, int]  # up and down, of one client in a round


class Snapshot(NamedTuple):
    """The content of a checkpoint, from which a run continues with identical numbers."""

    states: list[State]  # one per lane
    sums: list[simulate.Progress]  # since the last evaluation, one per lane
    seconds: np.ndarray  # [1] spent in rounds
    bytes: np.ndarray  # [seeds, 2] communicated, up and down


class Engine:
    """Plays rounds and scores models. All seeds advance together, in one call or one by one.

    Args:
      simulation: the input.
      abstract: whether to hold only the shapes of arrays. Such an engine cannot play rounds, but
        its programs can be lowered for devices that this machine does not have.
      facts: those of the first stage; an abstract engine needs them if the stage has `prepare`.
      folder: where to create the engine's own files; None: the folder for temporary files.
    """

    def __init__(
        self,
        simulation: Simulation,
        abstract: bool = False,
        facts: list[dict] | None = None,
        folder: Path | None = None,
    ):
        began = time.perf_counter()
        self.simulation, self.abstract = simulation, abstract
        self.together = simulation.vectorized_seeds and len(simulation.seeds) > 1
        self.place = Placement(
            strategy=simulation.strategy,
            num_clients=len(simulation.federations[0].train),
            seeds=len(simulation.seeds) if self.together else 0,
            abstract=abstract,
        )
        self.lanes = self._image_lanes = self._make_lanes()
        self.plan = self._first_plan
        self.ends = list(itertools.accumulate(stage.rounds for stage in simulation.stages))
        self.sums = self._no_progress()
        self.played = 0  # rounds
        self.seconds = 0.0  # spent in them, and in nothing else
        self.bytes = np.zeros((len(simulation.seeds), 2))  # up and down, in the rounds played
        self.evaluate_seconds = 0.0
        self.session = _Session(0, 0.0, np.zeros(3))
        self._seed_fields = ()  # fields of a federation that differ between seeds due to a view
        self.stage_number = -1
        self.states: list[Any] = [None] * len(self.lanes)
        self._folder = folder or Path(tempfile.gettempdir())
        self._hosted: list[Hosted] = []
        self.compile_seconds = time.perf_counter() - began  # of all work that is done only once
        self.first_facts = self.next_stage(facts)

    def compile(self) -> None:
        """Compiles a block of rounds and the evaluation of this stage, once for all seeds.

        Seeds whose states differ in shape have separate programs. Each program then plays a block
        of zero rounds, so that the cost of its first call is not counted as training time.
        """
        began = time.perf_counter()
        lowered = self.lower()
        compiled = {shapes: _compiled(programs) for shapes, programs in lowered.items()}
        self._compiled = [compiled[self._shapes(i)] for i in range(len(self.lanes))]
        for hosted, programs in zip(self._hosted, self._compiled, strict=False):
            hosted.use(programs.play, programs.score)
        self._players = self._hosted or self._compiled
        self.round_cost = self._count_flops()
        self._play(0)
        self.compile_seconds += time.perf_counter() - began

    def lower(self) -> dict[Hashable, Programs]:
        """Lowers the programs of this stage; returns them by the shapes of a lane's state."""
        self._apply_view()
        lowered = {}
        for i, of_lane in enumerate(zip(self.lanes, self.states, self.sums, strict=True)):
            if (shapes := self._shapes(i)) in lowered:
                continue
            if self._hosted:
                lowered[shapes] = Programs(*self._hosted[i].lower(of_lane[1].server, of_lane[2]))
            else:
                lowered[shapes] = self._lower(*of_lane)
        return lowered

    def _shapes(self, lane):
        """The shapes of a lane's state; lanes with the same shapes share their programs."""
        return _shapes(self._hosted[lane].shapes if self._hosted else self.states[lane])

    def _lower(self, lanes, state, sums):
        number = np.int32(0)

        def play(settings, *args):
            return simulate.play(self._program(settings), *args)

        def score(settings, *args):
            return evaluate.score(self._program(settings), *args)

        axes = 0, self._axes(lanes.training), 0
        out = self.place.of_state(state), self._sharding
        block = self._jit(play, (*axes, 0, None, None), out, donate_argnums=(2, 3))
        scored = self._jit(score, (*axes, None), self._sharding)
        if not parallel.jit_is_disabled():
            of_lane = lanes.settings, lanes.training, state, sums, number, number
            block = block.lower(*of_lane)
            scored = scored.lower(lanes.settings, lanes.scoring, state, number)
        return Programs(block, scored, *self._messages(lanes.training, state))

    def _program(self, settings):
        """The program of this stage for a seed with these settings."""
        return make_program(self.simulation, self.stage_number, self.plan, settings)

    @property
    def programs(self) -> list[Programs]:
        """The compiled programs of this stage, one entry per lane."""
        return self._compiled

    @property
    def stage(self) -> Stage:
        """The current stage."""
        return self.simulation.stages[self.stage_number]

    @property
    def stage_is_over(self) -> bool:
        """Whether the next round belongs to another stage."""
        return self.played == self.ends[self.stage_number] < self.ends[-1]

    def next_stage(self, facts: list[dict] | None = None) -> list[dict]:
        """Begins the next (or first) stage and returns the facts of each lane.

        facts: of each lane; None: computes them with the stage's `prepare`. Call `compile` next.
        """
        began = time.perf_counter()
        self.stage_number += 1
        self._stage_session = self.session
        facts = self._prepare() if facts is None else facts
        self.states = self._first_states() if self.stage.start is None else self._started(facts)
        if self.stage_number == 0 and self.simulation.start is not None:
            self._begin_with(self.simulation.start)
        if (view := self.stage.view) is not None and view.frozen is not None:
            sizes = [self._frozen_bytes(state) for state in self.states]
            self.bytes = self.bytes + [[0, self._num_clients * size] for size in sizes]
        jax.block_until_ready(self.states)
        self.compile_seconds += time.perf_counter() - began
        return facts

    def _started(self, facts):
        """The states with which this stage starts, one per lane."""

        def start(settings, keys, last, facts):
            number, last = self.stage_number, self.place.without_padding(last)
            key = streams.stage(keys.init, number)[1] if number else keys.init
            state = _varied(self.simulation, number, settings)[0].start(
                key, self._num_clients, last, facts
            )
            return self.place.padded(state)

        each = zip(self.lanes, self.states, facts, strict=True)
        args = [(lanes.settings, lanes.training.keys, *of_lane) for lanes, *of_lane in each]
        run = self._run(start, (0, 0, 0, 0), self.place.of_state(self._shapes_of(start, args[0])))
        return [run(*of_lane) for of_lane in args]

    def _frozen_bytes(self, state):
        """The size of what a stage sends once to each client of one seed."""
        return tree.num_bytes(jax.eval_shape(self.stage.view.frozen, self._one_seed(state).server))

    def _apply_view(self):
        """Sets lanes and plan for this stage, as its view of the examples requires."""
        self.lanes, self.plan, self._seed_fields = self._image_lanes, self._first_plan, ()
        if self.stage.reliable:
            self.plan = self.plan._replace(dropout=0.0)
        view = self.stage.view or View()
        if view.batch_size:
            longest = self.lanes[0].training.federation.train.longest
            size = min(view.batch_size, longest)
            self.plan = self.plan._replace(batch_size=size, equal_steps=False)
        if view.embedded:
            x = self.place.put_pool(self.simulation.embeddings().examples)
            self._change_federations([{"x": x, **_PLAIN, **_NOT_SCORED}] * len(self.lanes))
            self.plan = self.plan._replace(augment=None, example_shape=None)
        if view.frozen is not None:
            freeze = self._run(lambda state: view.frozen(state.server), (0,))
            self._change_federations([{"frozen": freeze(state)} for state in self.states])
            self._seed_fields = ("frozen",)
        if view.transform is not None:
            self._transform(view)

    def _transform(self, view):
        """Replaces the examples by their transforms: once for the pool, or else in every batch."""
        transformed = self.plan._replace(view=view.transform)
        of_clean = self.plan.augment is None or view.before_augmentation
        if not of_clean or self.plan.feature_skew is not None:  # a skew depends on the client
            self.plan = transformed._replace(augment=None) if of_clean else transformed
            return
        whole = partial(simulate.view_pool, transformed, self.simulation.strategy)
        axes = (self._axes(self.lanes[0].scoring).federation,)
        out = self.place.of_viewed_pool
        flat = self._run(lambda federation: _flat(whole(federation)), axes, out)
        federations = [lanes.scoring.federation for lanes in self.lanes]
        viewed = self._one_seed(jax.eval_shape(self._jit(whole, axes, out), federations[0]))
        self._change_federations([{"x": flat(each), **_PLAIN} for each in federations])
        self._seed_fields = ("frozen", "x")
        self.plan = self.plan._replace(augment=None, example_shape=viewed.shape[1:])

    def _change_federations(self, fields):
        """Replaces fields of the federations of each lane."""
        self.lanes = [
            lanes._replace(
                training=_changed(lanes.training, new), scoring=_changed(lanes.scoring, new)
            )
            for lanes, new in zip(self.lanes, fields, strict=True)
        ]

    def _axes(self, lane):
        """Vmap axes of a lane: 0 for what differs between seeds (clients, keys, rows, views)."""
        federation = _seed_axes(lane.federation)._replace(**dict.fromkeys(self._seed_fields, 0))
        return Lane(federation, population=0, keys=0, new=0)

    def _prepare(self):
        if self.stage.prepare is None:
            return [{} for _ in self.lanes]
        keys = [streams.make_keys(jax.random.key(seed)) for seed in self.simulation.seeds]
        populations = self._each_seed([lanes.scoring.population for lanes in self.lanes])
        facts = [
            self._facts(*of_seed)
            for of_seed in zip(keys, populations, self.final_states(), strict=True)
        ]
        facts = processes.of_first(lambda: facts)  # the last bit may differ between hosts
        if not self.together:
            return facts
        if len({_shapes(of_seed) for of_seed in facts}) > 1:
            raise BadInput(
                f"the facts of stage {self.stage.name} differ in size between seeds; use"
                " config.engine.seeds=sequential"
            )
        return [jax.tree.map(lambda *a: np.stack(a), *facts)]

    def _facts(self, keys, population, state):
        """The facts that `prepare` of this stage computes for one seed."""
        key, _ = streams.stage(keys.init, self.stage_number)
        population, state = processes.on_host((population, state))
        population = simulate.without_padding(self._first_plan, population)
        facts = self.stage.prepare(key, population, state)
        return {name: np.asarray(fact) for name, fact in facts.items()}

    @property
    def _streams(self):
        host = self.simulation.host
        return host is not None and host.stream

    @property
    def _sharding(self):
        return self.simulation.strategy.sharding

    @property
    def _num_clients(self):
        return self.place.num_clients

    @property
    def _first_plan(self):
        new = self.simulation.federations[0].new_train
        return self.simulation.plan._replace(
            num_clients=self._num_clients if self.place.padding else None,
            num_new=len(new) if new is not None and len(new) % self.place.parts else None,
        )

    def _first_states(self):
        if self.simulation.host is not None:
            self._hosted = list(map(self._make_hosted, range(len(self.lanes))))
            return [self._first_server(hosted) for hosted in self._hosted]

        def first(settings, keys):
            method = self._program(settings).method
            return self.place.padded(simulate.init(method, keys, self._num_clients))

        args = [(lanes.settings, lanes.training.keys) for lanes in self.lanes]
        state = self._shapes_of(first, args[0])
        init = self._run(first, (0, 0), self.place.of_state(state))
        if not self.abstract:
            size = self.place.num_bytes(state)
            parallel.check_memory(size, "the model and the clients' states need")
        return [init(*of_lane) for of_lane in args]

    def _begin_with(self, given):
        """Replaces the initial states by the states `given` [seed]."""
        for first, state in zip(self.final_states(), given, strict=True):
            contract.check_alike("the state that the run starts from must be", state, first)
        if self._hosted:
            for hosted, state in zip(self._hosted, given, strict=True):
                hosted.keep(state.private)
            self.states = [self._put(State(state.server, ())) for state in given]
            return
        like, bits = given[0], jax.device_get(to_bits(given))  # they may lie on other devices

        def begin(bits):
            return self.place.padded(from_bits(bits, like))

        if self.together:
            bits = [jax.tree.map(lambda *a: np.stack(a), *bits)]
        run = self._run(begin, (0,), self.place.of_state(self.states[0]))
        self.states = [run(state) for state in bits]

    def _make_hosted(self, i):
        lanes, simulation = self.lanes[i], self.simulation
        wholes = simulation.training[i], simulation.federations[i]
        keys = streams.make_keys(jax.random.key(simulation.seeds[i]))
        seed = Seed(lanes.training, lanes.scoring, keys, *wholes)
        tools = Tools(
            jit=partial(self._jit, seed_axes=(), out=self._sharding),
            everywhere=self._sharding,
            of_segments=self.place.of_clients or self._sharding,
            put=partial(self.place.put, compared=False),
            put_segment=self.place.put_segment,
        )
        owners = divide(self._num_clients, self.place.of_clients)
        program = self._program(lanes.settings)
        return Hosted(program, seed, simulation.host, owners, self._folder, tools)

    def _first_server(self, hosted):
        """The server's part of the initial state; the clients' part is put into the store."""
        if not self.abstract:
            hosted.fill()
        return State(self._run(hosted.first_server, ())(hosted.keys), ())

    def play(self, at_most: int) -> None:
        """Plays a block of at most `at_most` rounds, about a second long."""
        played, seconds, totals = self.session
        earlier = self._stage_session
        new = played - earlier.played
        pace = new / (seconds - earlier.seconds) if new else 0.0
        count = processes.of_first(lambda: int(np.clip(pace * BLOCK_SECONDS, 1, at_most)))
        before = self._counts()
        began = time.perf_counter()
        with jax.profiler.StepTraceAnnotation("rounds", step_num=self.played + 1):
            self._play(count)
        took = time.perf_counter() - began
        self.session = _Session(played + count, seconds + took, totals)
        self.played += count
        self.seconds += took
        self.bytes = self.bytes + self._sent(count, before)

    def _play(self, count):
        numbers = np.int32(self.played), np.int32(count)
        for i, lanes in enumerate(self.lanes):
            args = lanes.settings, lanes.training, self.states[i], self.sums[i]
            self.states[i], self.sums[i] = self._players[i].play(*args, *numbers)
        jax.block_until_ready(self.sums)

    def _counts(self):
        """(clients that took part, uploads that arrived) since the last evaluation, [seeds] each.

        They are None if no place of a cohort can be empty, or no upload can be lost, respectively.
        """
        if self.sums[0].drawn is None and self.sums[0].arrived is None:
            return None, None
        sums = self.progress()
        return sums.drawn, sums.arrived

    def _sent(self, count, before):
        """Bytes up and down [seeds, 2] in the last `count` rounds.

        before: the value of `_counts` before these rounds.
        """
        each = [(compiled.clients, *compiled.message_bytes) for compiled in self._compiled]
        clients, up, down = np.array(each).T  # per lane; vectorized seeds send equally many bytes
        pairs = zip(self._counts(), before, strict=True)
        drawn, arrived = (None if then is None else now - then for now, then in pairs)
        sent = count * clients if drawn is None else drawn
        arrived = sent if arrived is None else arrived
        return np.stack(np.broadcast_arrays(arrived * up, sent * down), axis=-1)

    def progress(self) -> simulate.Progress:
        """The sums since the last evaluation, [seeds] each."""
        sums = [jax.tree.map(np.atleast_1d, s) for s in jax.device_get(self.sums)]
        return jax.tree.map(lambda *a: np.concatenate(a), *sums)

    def evaluate(self) -> list[evaluate.Scores]:
        """Scores each seed after the rounds played so far, and resets the sums."""
        self.session = self.session._replace(totals=self.session.totals + self._done())
        self.sums = self._no_progress()
        began = time.perf_counter()
        scores = []
        for lanes, state, player in zip(self.lanes, self.states, self._players, strict=True):
            args = lanes.settings, lanes.scoring, state, np.int32(self.played)
            with jax.profiler.TraceAnnotation("evaluate"):
                scores.append(jax.device_get(player.score(*args)))
        self.evaluate_seconds += time.perf_counter() - began
        return self._each_seed(scores)

    def _count_flops(self):
        """The cost of a round of this stage for one seed."""
        if self._hosted:
            lane, private = self._hosted[0].shapes[0]
            state = State(self.states[0].server, private)
        else:
            lane, state = self._lane_of_one_seed(self.lanes[0].training, self.states[0])
        return flops.of_round(self._program({}), lane, state)

    def _messages(self, lane, state):
        """The number of clients in a round of one seed, and the bytes (up, down) of one client."""
        of_round = self._program({}), *self._lane_of_one_seed(lane, state)
        return simulate.cohort_size(*of_round), simulate.message_bytes(*of_round)

    def _lane_of_one_seed(self, lane, state):
        """The shapes of one seed's part of a lane and of its state."""
        federation = [
            self._one_seed(a) if axis == 0 else a
            for a, axis in zip(lane.federation, self._axes(lane).federation, strict=True)
        ]
        population, keys, state = self._one_seed((lane.population, lane.keys, state))
        return Lane(Federation(*federation), population, keys), state

    def _one_seed(self, a):
        """The shapes of one seed's part of a lane's arrays."""
        if not self.together:
            return a
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), a)

    def recorded(self) -> list[dict]:
        """The arrays that the method's `record` returns, as nested lists by name, for each seed."""
        if self.stage.method.record is None:
            return [{} for _ in self.simulation.seeds]
        settings = self._each_seed([lanes.settings for lanes in self.lanes])
        arrays = [
            jax.device_get(self._program(of_seed).method.record(state))
            for of_seed, state in zip(settings, self.final_states(), strict=True)
        ]
        return [{name: np.asarray(a).tolist() for name, a in each.items()} for each in arrays]

    def final_states(self) -> list[State]:
        """The state of each seed. Parts kept on the host are NumPy arrays, or maps of a file."""
        if self._hosted:
            each = zip(self._hosted, self.states, strict=True)
            return [hosted.whole_state(state) for hosted, state in each]
        if not self.place.padding:
            return self._each_seed(self.states)
        real = self._run(self.place.without_padding, (0,))
        return self._each_seed([state and real(state) for state in self.states])

    def snapshot(self) -> Snapshot:
        """The state of the run after the rounds played so far."""
        return Snapshot(self.states, self.sums, np.array([self.seconds]), self.bytes)

    def kept(self) -> list[HostState]:
        """The private state that is kept on the host after the rounds played, one per lane.

        After `go_on`, fill them with the private state that belongs to that snapshot.
        """
        return [hosted.kept() for hosted in self._hosted]

    def go_on(self, snapshot: Snapshot, played: int) -> None:
        """Restores a snapshot that was taken after `played` rounds, in the same stage."""
        self.states, self.sums, (self.seconds,), self.bytes = snapshot
        self.played = played
        for hosted in self._hosted:
            hosted.forget()
        # The work of an earlier process since the last evaluation does not count for this session.
        self.session = self.session._replace(totals=-self._done())

    def _done(self):
        sums = self.progress()
        return np.array([sums.examples.sum(), sums.steps.sum(), sums.lane_steps.sum()])

    def _make_lanes(self):
        simulation = self.simulation
        keys = [streams.make_keys(jax.random.key(seed)) for seed in simulation.seeds]
        settings = simulation.settings or [{}] * len(keys)
        scoring, training = simulation.federations, simulation.training
        alike = all(a is b for a, b in zip(training, scoring, strict=True))
        scoring = [simulation.strategy.arrange(federation) for federation in scoring]
        pool = self._make_pool(scoring[0])
        of_seeds = list(zip(settings, keys, strict=True))
        groups = [slice(i, i + 1) for i in range(len(keys))]
        if self.together:
            of_seeds = [jax.tree.map(lambda *a: jnp.stack(a), *of_seeds)]
            groups = [slice(None)]
        of_seeds = [self._put(of_seed) for of_seed in of_seeds]
        scored = list(self._each_lane(pool, scoring, groups))
        trained = scored if alike else self._each_lane(pool, training, groups)
        return [
            Lanes(settings, *(Lane(keys=keys, **of_lane) for of_lane in both))
            for (settings, keys), *both in zip(of_seeds, trained, scored, strict=True)
        ]

    def _each_lane(self, pool, federations, groups):
        """Fields of the lanes of these groups of seeds, over one pool of examples for all."""
        dealt, put = federations, operator.itemgetter(0)
        if self.simulation.host is None:  # else rows stay in NumPy, and there is one seed per lane
            dealt, put = self.place.dealt(federations), self.place.put_rows
        for group in groups:
            rows = {name: put([getattr(f, name) for f in dealt[group]]) for name in CLIENT_ROWS}
            yield {
                "federation": pool._replace(**rows),
                "population": self._put_people(simulate.population_on_host, federations[group]),
                "new": self._put_people(simulate.new_on_host, federations[group]),
            }

    def _put_people(self, of, federations):
        """The clients that `of` makes from each of these seeds' federations, or None."""
        people = [of(federation, self.simulation.num_classes) for federation in federations]
        return None if people[0] is None else self.place.put_clients(people)

    def _make_pool(self, federation):
        """The federation without the clients' rows; in NumPy if examples are streamed."""
        shared = federation._replace(**dict.fromkeys((*CLIENT_ROWS, "skews")))
        if self._streams:
            return shared
        pool = {name: self.place.put_pool(getattr(federation, name)) for name in POOL}
        return self.place.put(shared._replace(**dict.fromkeys(POOL)))._replace(**pool)

    def _no_progress(self):
        methods = [stage.method for stage in self.simulation.stages]
        places = any(method.empty_places for method in methods)
        own = any(sampling.is_own(method.sample) for method in methods)

        def one(lanes):  # a separate copy per lane, since their buffers are donated
            none = simulate.no_progress(self.simulation.plan.dropout > 0, places, own)
            if self.together:
                none = jax.tree.map(lambda a: jnp.stack([a] * len(self.simulation.seeds)), none)
            return self._put(none)

        return [one(lanes) for lanes in self.lanes]

    def _put(self, a):
        """Puts arrays that every process has on the devices of the run."""
        return self.place.put(a)

    def _run(self, function, seed_axes, out=None):
        """The jitted function over all seeds of a call; an abstract engine returns only shapes.

        out: sharding of the results; None: on all devices.
        """
        out = self._sharding if out is None else out
        jitted = self._jit(function, seed_axes, out)
        if not self.abstract:
            return jitted
        return lambda *args: self.place.described(jax.eval_shape(jitted, *args), out)

    def _jit(self, function, seed_axes, out, **options):
        function = jax.vmap(function, seed_axes) if self.together else function
        if self.simulation.precision is not None:
            function = jax.default_matmul_precision(self.simulation.precision)(function)
        return jax.jit(function, out_shardings=out, **options)

    def _shapes_of(self, function, args):
        """The shapes of the function's results for the seeds of a call."""
        return jax.eval_shape(self._jit(function, (0,) * len(args), None), *args)

    def _each_seed(self, trees):
        if not self.together:
            return list(trees)
        seeds = range(len(self.simulation.seeds))
        return [jax.tree.map(lambda a, i=i: a[i], trees[0]) for i in seeds]


def make_program(
    simulation: Simulation, number: int, plan: Plan, settings: dict[str, PyTree]
) -> Program:
    """The program of the stage with this number, for a seed with these settings."""
    stage, fields = _varied(simulation, number, settings)
    program = Program(stage.method, plan._replace(**fields), simulation.strategy)
    if simulation.scheduled is None:
        return program

    def in_round(t):
        changed = simulation.scheduled(number, settings, t)
        stage, fields = _varied(simulation, number, changed)
        return stage.method, fields

    return program._replace(scheduled=in_round)


def _varied(simulation, number, settings):
    """A stage for a seed with these settings, and the fields of the plan that change."""
    if not settings:
        return simulation.stages[number], {}
    stages, fields = simulation.variant(settings)
    return stages[number], fields


def _changed(lane, fields):
    """The lane, with these fields of its federation replaced."""
    return lane._replace(federation=lane.federation._replace(**fields))


def _flat(examples):
    """Examples [R, ...] as rows of a pool, [R, D]."""
    return examples.reshape(len(examples), -1)


def _compiled(programs):
    """The compiled programs. MemoryError if a round needs more memory than a CPU has free."""
    if parallel.jit_is_disabled():
        return programs
    play = programs.play.compile()
    if (sizes := play.memory_analysis()) is not None:
        parallel.check_memory(sizes.temp_size_in_bytes, "a round needs")
    score = jax.tree.map(lambda lowered: lowered.compile(), programs.score)
    return programs._replace(play=play, score=score)


class _Session(NamedTuple):
    """The work of this process, for its rates."""

    played: int
    seconds: float
    totals: np.ndarray  # examples, steps, lane steps; summed over all seeds


def _shapes(a):
    leaves, tree = jax.tree.flatten(a)
    return tree, *((x.shape, str(x.dtype)) for x in leaves)


_PLAIN = {"center": np.float32(0), "scale": np.float32(1)}  # leaves examples unchanged
_NOT_SCORED = dict.fromkeys(ROWS[1:])  # removes all rows but those to train on
_AXES = Federation._make(0 if name in CLIENT_ROWS else None for name in Federation._fields)


def _seed_axes(federation: Federation) -> Federation:
    """Vmap axes of a federation: only the clients' rows differ between seeds."""
    return Federation._make(
        None if a is None else axis for a, axis in zip(federation, _AXES, strict=True)
    )
