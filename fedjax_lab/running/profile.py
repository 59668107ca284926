"""A profile of a few rounds of a run, in files that TensorBoard (xprof) and Perfetto open."""

import contextlib
import itertools
from pathlib import Path

import jax

from fedjax_lab import processes
from fedjax_lab.engine import Engine, Simulation
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.running.progress import ProgressBar

WARM_UP = 3  # rounds before those that are recorded, as far as the stage has so many


class Profile:
    """Records so many rounds, early in a run, into the folder `profile` of its workdir.

    Compilation is never among them, evaluations between them are. The rounds are played in the same
    blocks as without a profile, but that one ends where the recording begins. Use as a context.
    """

    def __init__(self, rounds: int | None, workdir: Path | None):
        """None records nothing. BadInput where the number cannot be, or there is no workdir."""
        if rounds is not None and workdir is None:
            raise BadInput("a profile needs a workdir to be written to")
        self._rounds = rounds
        self._folder = workdir and workdir / "profile"
        self._span = range(0)  # the rounds to be recorded, counted from 0
        self._recording = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._recording.close()

    def check(self, simulation: Simulation, played: int) -> None:
        """BadInput unless a stage of the run has so many rounds left after `played` rounds."""
        if self._rounds is None:
            return
        lengths = [stage.rounds for stage in simulation.stages]
        ends = itertools.accumulate(lengths)
        most = max(min(end - played, n) for end, n in zip(ends, lengths, strict=True))
        if most <= 0:
            raise BadInput(f"--profile={self._rounds}: the run has no round left")
        if not 1 <= self._rounds <= most:
            where = "in its longest stage" if len(lengths) > 1 else "in the run"
            raise BadInput(
                f"--profile must be from 1 to {most}, the rounds that are left {where}; got"
                f" {quoted(self._rounds)}"
            )

    def begin_stage(self, engine: Engine) -> None:
        """Chooses the rounds in this stage, if it has enough of them and none was recorded yet."""
        left = engine.ends[engine.stage_number] - engine.played
        if self._rounds is not None and not self._span and self._rounds <= left:
            first = engine.played + min(WARM_UP, left - self._rounds)
            self._span = range(first, first + self._rounds)

    def play(self, engine: Engine, at_most: int, progress: ProgressBar) -> None:
        """`engine.play`, up to where the recording begins or ends. Begins and ends it."""
        if engine.played in self._span:
            at_most = min(at_most, self._span.stop - engine.played)
            self._start(engine.played)
        elif engine.played < self._span.start:
            at_most = min(at_most, self._span.start - engine.played)
        engine.play(at_most)
        if self._span and engine.played == self._span.stop:
            self._recording.close()
            last = self._span.stop
            progress.tell(f"profile of rounds {self._span.start + 1} to {last}: {self._folder}")

    def _start(self, played):
        if played == self._span.start and processes.is_first():
            trace = jax.profiler.trace(self._folder, create_perfetto_trace=True)
            self._recording.enter_context(trace)
