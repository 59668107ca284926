"""Plays the stages of a run one after another, and holds the states of all seeds between calls."""

import itertools
import tempfile
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_lab import defaults
from fedjax_lab.engine import counts, flops, parallel, processes, programs, starting, views
from fedjax_lab.engine.host.host_state import HostState
from fedjax_lab.engine.host.hosted import Hosted
from fedjax_lab.engine.input import Simulation
from fedjax_lab.engine.lanes import (
    axes_of,
    each_seed,
    settings_of_seeds,
)
from fedjax_lab.engine.placement import Jit, Placement
from fedjax_lab.engine.programs import Programs, make_program, shapes_of
from fedjax_lab.simulation import evaluate, simulate
from fedjax_lab.types import Stage, State


def in_thread(function: Callable[[], Any]) -> Future:
    """The result of a function that a new thread calls, with JAX's usual settings."""
    pool = ThreadPoolExecutor(1)
    result = pool.submit(defaults.restored()(function))
    pool.shutdown(wait=False)
    return result


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
        self.simulation = simulation
        self.together = simulation.vectorized_seeds and len(simulation.seeds) > 1
        self.place = Placement(
            strategy=simulation.strategy,
            num_clients=len(simulation.seeds[0].federation.train),
            num_training=len(simulation.seeds[0].training.train),
            seeds=len(simulation.seeds) if self.together else 0,
            abstract=abstract,
        )
        self._jit = Jit(self.place, simulation.precision)
        self._images = views.unviewed(simulation, self.place)
        self.lanes, self.plan, self._differing = self._images
        self.ends = list(itertools.accumulate(stage.rounds for stage in simulation.stages))
        self.played = 0  # rounds
        self.seconds = 0.0  # spent in them, and in nothing else
        self.bytes = np.zeros((len(simulation.seeds), 2))  # up and down, in the rounds played
        self.evaluate_seconds = 0.0
        self.session = counts.Session()
        self.stage_number = -1
        self._likes: list[Any] = []  # the shapes of the states, one per lane
        self._states: Any = [None] * len(self.lanes)  # or a `Future` of the states
        self._folder = folder or Path(tempfile.gettempdir())
        self._hosted: Sequence[Hosted] = ()
        self.compile_seconds = time.perf_counter() - began  # of all work that is done only once
        self.first_facts = self.next_stage(facts)

    def _apply_view(self):
        """Sets the lanes and the plan of this stage, as its view of the examples requires."""
        self.lanes, self.plan, self._differing = views.viewed(
            self.simulation, self.stage_number, self._jit, self._images, lambda: self.states
        )

    def compile(self) -> None:
        """Compiles a block of rounds and the evaluation of this stage, once for all seeds.

        Seeds whose states differ in shape have separate programs. Each program then plays a block
        of zero rounds, so that the cost of its first call is not counted as training time.
        """
        began = time.perf_counter()
        lowered = self.lower()
        self._cost = in_thread(partial(flops.round_cost, *lowered[self._shapes(0)].of_round))
        compiled = {shapes: programs.compiled(each) for shapes, each in lowered.items()}
        jax.block_until_ready(self.states)  # they take memory, too
        for each in compiled.values():
            programs.check_memory(each)
        self.programs = [compiled[self._shapes(i)] for i in range(len(self.lanes))]
        for hosted, each in zip(self._hosted, self.programs, strict=False):
            hosted.use(each.play, each.score)
        self._players: Sequence[Any] = self._hosted or self.programs
        training = [seed.training for seed in self.simulation.seeds]
        self._absent = counts.absent_bytes(self.stage.method, training)
        self._play(0)
        self.compile_seconds += time.perf_counter() - began

    def lower(self) -> dict[Hashable, Programs]:
        """Lowers the programs of this stage; returns them by the shapes of a lane's state."""
        self._apply_view()
        lowered: dict[Hashable, Programs] = {}
        for i in range(len(self.lanes)):
            if (shapes := self._shapes(i)) not in lowered:
                lowered[shapes] = self._lower(i)
        return lowered

    def _lower(self, i):
        lanes, state, sums = self.lanes[i], self._likes[i], self.sums[i]
        if self._hosted:
            return programs.make_programs(*self._hosted[i].lower(state.server, sums))
        axes = axes_of(lanes.training, self._differing)
        return programs.lower(self._jit, self._program, lanes, axes, state, sums)

    def _shapes(self, i):
        """The shapes of a lane's state; lanes with the same shapes share their programs."""
        return shapes_of(self._hosted[i].shapes if self._hosted else self._likes[i])

    def _program(self, settings):
        """The program of this stage for a seed with these settings."""
        return make_program(self.simulation, self.stage_number, self.plan, settings)

    @property
    def states(self) -> list[Any]:
        """The state of each lane. Waits for the first states of a stage if they are not ready."""
        if isinstance(self._states, Future):
            self._states = jax.block_until_ready(self._states.result())
        return self._states

    @property
    def round_cost(self) -> flops.RoundCost | None:
        """The operations of a round of this stage, which a thread counts meanwhile."""
        return self._cost.result()

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
        if facts is None:
            facts = starting.prepared(
                self.simulation, self.stage_number, self.place, self._images, self.final_states
            )
        start = starting.begin(
            self.simulation,
            self.stage_number,
            self._jit,
            self._images,
            self.states,
            facts,
            self._folder,
        )
        self._likes, self._hosted = start.likes, start.hosted
        # Several processes compute in the same order, and without jit a debugger sees the states.
        alone = self.place.abstract or processes.count() > 1 or parallel.jit_is_disabled()
        self._states = start.compute() if alone else in_thread(start.compute)
        if self.stage_number == 0:
            self.sums = starting.first_sums(self.simulation, self._jit, lambda: self.states)
        sizes = [
            views.frozen_bytes(self.simulation, self.stage_number, state, self.place.seeds)
            for state in self._likes
        ]
        self.bytes = self.bytes + [[0, self.place.num_clients * size] for size in sizes]
        self.compile_seconds += time.perf_counter() - began
        return facts

    def play(self, at_most: int) -> None:
        """Plays a block of at most `at_most` rounds, about a second long."""
        count = counts.block_length(self.session, self._stage_session, at_most)
        before = counts.messages_of(self.sums)
        began = time.perf_counter()
        with jax.profiler.StepTraceAnnotation("rounds", step_num=self.played + 1):
            self._play(count)
        took = time.perf_counter() - began
        self.session = self.session.after(count, took)
        self.played += count
        self.seconds += took
        after = counts.messages_of(self.sums)
        if not self.simulation.seeds[0].is_pooled:
            sent = counts.bytes_of(self.programs, count, before, after, self._absent)
            self.bytes = self.bytes + sent

    def _play(self, count):
        for i, lanes in enumerate(self.lanes):
            self.states[i], self.sums[i] = self._players[i].play(
                lanes.settings,
                lanes.training,
                self.states[i],
                self.sums[i],
                np.int32(self.played),
                np.int32(count),
            )
        jax.block_until_ready(self.sums)

    def progress(self) -> simulate.Progress:
        """The sums since the last evaluation, [seeds] each."""
        return counts.seed_sums(self.sums)

    def evaluate(self) -> list[evaluate.Scores]:
        """Scores each seed after the rounds played so far, and resets the sums."""
        totals = self.session.totals + counts.work_of(self.sums)
        self.session = self.session._replace(totals=totals)
        new = starting.no_progress(self.simulation, self.place)
        self.sums = list(map(simulate.reset, self.sums, new))
        began = time.perf_counter()
        scores = []
        for lanes, state, player in zip(self.lanes, self.states, self._players, strict=True):
            with jax.profiler.TraceAnnotation("evaluate"):
                scores.append(
                    jax.device_get(
                        player.score(lanes.settings, lanes.scoring, state, np.int32(self.played))
                    )
                )
        self.evaluate_seconds += time.perf_counter() - began
        return each_seed(scores, self.place.seeds)

    def recorded(self) -> list[dict]:
        """The arrays that the method's `record` returns, as nested lists by name, for each seed."""
        if self.stage.method.record is None:
            return [{} for _ in self.simulation.seeds]
        settings = settings_of_seeds(self.lanes, self.place.seeds)
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
            return each_seed(self.states, self.place.seeds)
        real = self._jit.runner(self.place.without_padding, (0,))
        return each_seed([state and real(state) for state in self.states], self.place.seeds)

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
        self._states, self.sums, (self.seconds,), self.bytes = snapshot
        self.played = played
        for hosted in self._hosted:
            hosted.forget()
        # The work of an earlier process since the last evaluation does not count for this session.
        self.session = self.session._replace(totals=-counts.work_of(self.sums))
