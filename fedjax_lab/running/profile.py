"""Profiles a few rounds of a run, in files that TensorBoard (xprof) and Perfetto open."""

import gzip
import itertools
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import jax

from fedjax_lab.data import writing
from fedjax_lab.engine import parallel, processes
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.input import Simulation
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.running.progress import ProgressBar

WARM_UP = 3  # rounds played before the recorded ones, if the stage has that many


class Profile:
    """A context manager that profiles some early rounds into the folder `profile` of a workdir.

    The profile contains evaluations between the rounds, but no compilation. Rounds are played in
    the same blocks as without a profile, except that a block ends where the recording begins.
    """

    def __init__(self, rounds: int | None, workdir: Path | None):
        """rounds: the number of rounds to record; None: record nothing.

        Raises BadInput if there are rounds to record but no workdir.
        """
        if rounds is not None and workdir is None:
            raise BadInput("a profile needs a workdir to write to; name one with --workdir")
        self._rounds = rounds
        self._folder = (workdir or Path()) / "profile"
        self._span = range(0)  # the rounds to be recorded, counted from 0
        self._records = False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._records:
            jax.profiler.stop_trace()

    def check(self, simulation: Simulation, played: int) -> None:
        """Raises BadInput unless a stage has enough rounds left to record after `played` rounds."""
        if self._rounds is None:
            return
        lengths = [stage.rounds for stage in simulation.stages]
        ends = itertools.accumulate(lengths)
        most = max(min(end - played, n) for end, n in zip(ends, lengths, strict=True))
        if most <= 0:
            raise BadInput(f"--profile={self._rounds}: the run has no rounds left to record")
        if not 1 <= self._rounds <= most:
            where = "in its longest stage" if len(lengths) > 1 else "in the run"
            raise BadInput(
                f"--profile must be from 1 to {most}, the number of rounds left {where}; got"
                f" {quoted(self._rounds)}"
            )

    def open(self) -> None:
        """Creates the folder of the profile. Raises OSError if it cannot."""
        if self._rounds is not None and processes.is_first():
            self._folder.mkdir(parents=True, exist_ok=True)

    def begin_stage(self, engine: Engine) -> None:
        """Chooses rounds of this stage to record, if it has enough and none were chosen before."""
        left = engine.ends[engine.stage_number] - engine.played
        if self._rounds is not None and not self._span and self._rounds <= left:
            first = engine.played + min(WARM_UP, left - self._rounds)
            self._span = range(first, first + self._rounds)

    def play(self, engine: Engine, at_most: int, progress: ProgressBar) -> None:
        """Calls `engine.play` up to where the recording begins or ends; starts and stops it there.

        at_most: the most rounds to play.
        """
        first, end = self._span.start, self._span.stop
        if engine.played == first < end and processes.is_first():
            jax.profiler.start_trace(self._folder)
            self._records = True
        edges = (edge - engine.played for edge in (first, end) if edge > engine.played)
        engine.play(min([at_most, *edges]))
        if self._records and engine.played == end:
            self._records = False
            jax.profiler.stop_trace()
            write_for_perfetto(self._folder, engine)
            progress.tell(f"profile of rounds {first + 1} to {end}: {self._folder}")


def write_for_perfetto(folder: Path, engine: Engine) -> None:
    """Writes perfetto_trace.json.gz beside the newest trace: the same trace with `op_name`s."""
    if parallel.jit_is_disabled():
        return
    newest = max(folder.glob("plugins/profile/*/*.trace.json.gz"), key=os.path.getmtime)
    trace = json.loads(gzip.decompress(newest.read_bytes()))
    programs = jax.tree.leaves([(each.play, each.score) for each in engine.programs])
    add_names(trace["traceEvents"], (program.as_text() for program in programs))
    trace.pop("metadata", None)  # Perfetto rejects its content
    content = gzip.compress(json.dumps(trace).encode())
    writing.replace(newest.with_name("perfetto_trace.json.gz"), content)


def add_names(events: Iterable[dict], programs: Iterable[str]) -> None:
    """Adds to each event of an operation its `op_name`, which locates it in the source.

    An `op_name` is a path of named scopes, such as `jit(play)/while/body/local/Conv_0/dot_general`.
    CPU traces only have the compiler's name of each operation.

    Args:
      events: the events of a trace, which are changed.
      programs: the compiled programs as HLO text.
    """
    names: dict[tuple[str, str], str] = {}
    for text in programs:
        module = text.split(maxsplit=2)[1].rstrip(",")
        operations = re.findall(r'^\s*(?:ROOT )?%?(\S+) = .*op_name="([^"]*)"', text, re.MULTILINE)
        names |= {(module, operation): name for operation, name in operations}
    for event in events:
        args = event.get("args", {})
        if name := names.get((args.get("hlo_module"), args.get("hlo_op"))):
            args["op_name"] = name
