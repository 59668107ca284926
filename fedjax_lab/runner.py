"""A run from its first round to its last: evaluations, checkpoints, files, interrupts."""

import functools
import os
import platform
import resource
import time
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedjax_lab import evaluate, files, interrupts, metrics, processes
from fedjax_lab.checkpoint import Checkpoints
from fedjax_lab.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import Experiment, join
from fedjax_lab.progress import Progress
from fedjax_lab.types import State

OURS = ("partition.png", "error.txt")  # what a folder may hold before its run has begun
SAVE_SECONDS = 5.0  # at least so long between two checkpoints


class Diverged(RuntimeError):
    """A number that is not finite, in one line; what was measured before is kept."""


class Interrupted(KeyboardInterrupt):
    """Stopped by a signal, with the state saved."""


class Result(NamedTuple):
    """What a run leaves: the contents of its files, and the final state of each seed."""

    summary: dict
    metrics: list[dict]  # one per evaluation and seed
    states: list[State]
    workdir: Path | None


def run(
    experiment: Experiment, workdir: Path | None = None, resume: bool = False, quiet: bool = False
) -> Result:
    """Runs to the last round, from the newest checkpoint of `workdir` where there is one.

    Raises Diverged, Interrupted, BadInput (a workdir that holds another run).
    """
    folder = _Folder(workdir, experiment, resume)
    try:
        engine = Engine(experiment)
        folder.open()
        rows = folder.restore(engine)
        if engine.played == 0:
            folder.keep_facts(engine.first_facts, engine)
        if folder.finished(engine.played == experiment.plan.rounds):
            return Result(folder.read_summary(), rows, engine.final_states(), folder.path)
        if engine.played < experiment.plan.rounds:
            _play(experiment, engine, folder, rows, quiet)
        summary = folder.finish(engine, rows)
        return Result(summary, rows, engine.final_states(), folder.path)
    finally:
        folder.close()


def run_together(parts: list[Experiment], workdirs: list[Path]) -> None:
    """Runs that `experiment.join` takes, as one computation, each with a new workdir of its own.

    What each has saved is that of an ordinary run, so that after any error, Diverged, which may
    be another's, among them, it can be resumed alone.
    """
    joint = join(parts)
    folders = [_Folder(*of, False) for of in zip(workdirs, parts, strict=True)]
    folders = _Folders(folders, [len(part.seeds) for part in parts])
    rows = []
    try:
        engine = Engine(joint)
        folders.open()
        _play(joint, engine, folders, rows, quiet=True)
        folders.finish(engine, rows)
    finally:
        folders.close()


def _play(experiment, engine, folder, rows, quiet):
    with Progress(experiment.plan.rounds, engine.played, quiet) as progress:
        progress.say("compiling")
        engine.compile()
        progress.start_clock()
        progress.say(f"{experiment.config.method.name}, {experiment.strategy.name}")
        _play_stage(experiment, engine, folder, rows, progress)
        while engine.stage_is_over:
            folder.keep_facts(engine.next_stage(), engine)
            engine.compile()
            progress.start_clock()
            progress.say(f"stage {engine.stage.name}")
            _play_stage(experiment, engine, folder, rows, progress)


def _play_stage(experiment, engine, folder, rows, progress):
    """Plays the rounds of a stage that are left. An interrupt waits until the state is saved."""
    rounds, times = experiment.plan.rounds, _evaluations(experiment, engine)
    with interrupts.delayed() as stop:
        while engine.played < engine.ends[engine.stage_number]:
            upcoming = np.searchsorted(times, engine.played, "right")
            goal, since = times[upcoming], times[upcoming] - times[upcoming - 1]
            while engine.played < goal and not processes.anywhere(stop.is_set()):
                engine.play(goal - engine.played)
                progress.rounds(engine.played)
                _check_finite(experiment, engine, folder, rows)
            if engine.played == goal:
                new = _rows(experiment, engine, since)
                rows += new
                folder.append(new)
                progress.evaluated(new)
            stopping = processes.anywhere(stop.is_set())
            folder.save(engine, force=stopping or engine.played in engine.ends)
            if stopping and engine.played < rounds:
                raise Interrupted(f"interrupted after round {engine.played} of {rounds}")


def _evaluations(experiment, engine):
    """0, then after how many rounds there is one: every eval_every, and where a stage ends."""
    every = experiment.config.run.eval_every
    return sorted({*range(0, engine.ends[-1], every), *engine.ends})


def _rows(experiment, engine, since):
    """One metrics row per seed, for the `since` rounds from the last evaluation on."""
    sums = engine.progress()
    rows = []
    scored = zip(experiment.seeds, engine.evaluate(), engine.recorded(), strict=True)
    for i, (seed, scores, recorded) in enumerate(scored):
        up, down = engine.bytes[i]
        rows.append(
            {
                "round": engine.played,
                "seed": seed,
                "stage": engine.stage.name,
                "train_loss": float(sums.train_loss[i] / since),
                **evaluate.summarise(scores, experiment.dataset.domains),
                "bytes_up": int(up),
                "bytes_down": int(down),
                "seconds": engine.seconds,
                **({"recorded": recorded} if recorded else {}),
            }
        )
    return rows


def _check_finite(experiment, engine, folder, rows):
    diverged = engine.progress().diverged
    if (diverged < 0).all():
        return
    i = int(np.argmax(diverged >= 0))
    where = {"round": int(diverged[i]) + 1, "seed": experiment.seeds[i]}
    if rows:
        folder.finish(engine, rows, diverged=where)
    raise Diverged(
        f"{experiment.config.method.name} diverged in round {where['round']} (seed"
        f" {where['seed']}): a loss or a weight is not finite; try a smaller config.local.lr"
    )


def _summary(experiment, engine, rows):
    seeds = experiment.seeds
    played, seconds, (examples, steps, lane_steps) = engine.session
    newest = [row for row in rows if row["round"] == rows[-1]["round"]]
    return {
        "method": experiment.config.method.name,
        "seeds": seeds,
        "rounds": engine.played,
        **metrics.summarise(rows, seeds),
        "seconds": engine.seconds,
        "evaluate_seconds": engine.evaluate_seconds,
        "compile_seconds": engine.compile_seconds,
        "rounds_per_second": _ratio(played * len(seeds), seconds),
        "examples_per_second": _ratio(examples, seconds),
        "utilisation": _ratio(steps, lane_steps),
        "peak_memory_bytes": peak_memory(),
        "bytes_up": sum(row["bytes_up"] for row in newest),
        "bytes_down": sum(row["bytes_down"] for row in newest),
        "strategy": experiment.strategy.name,
        "seeds_vectorised": engine.together,
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("jax", "flax", "optax", "numpy")},
        },
    }


def _ratio(a, b):
    return float(a / b) if b else None


def peak_memory() -> int:
    """Bytes: of the process, or of its accelerator where there is one."""
    stats = jax.local_devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats:
        return stats.get("peak_bytes_in_use")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else 1024 * peak


def check_workdir(path: Path, config, seeds: list[int], resume: bool) -> None:
    """BadInput where `path` holds another run, or one that was not asked to be resumed.

    Also where nothing can be written there.
    """
    there = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if not there.is_dir():
        raise BadInput(f"{there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(f"nothing can be written in {there}")
    if path.is_dir() and any(file.name not in OURS for file in path.iterdir()):
        if not resume:
            raise BadInput(f"{path} is not empty; use --resume to go on with its run")
        metrics.check_same_config(path / "config.json", saved_config(config, seeds))


def saved_config(config, seeds: list[int]) -> dict:
    """What a run's config.json holds."""
    return {**config.to_dict(), "seeds": list(seeds)}


class _Folder:
    """A workdir and its files; without a path nothing is written.

    The first process alone reads and writes them; the others are told what it has read.
    """

    def __init__(self, path: Path | None, experiment: Experiment, resume: bool):
        self.path = path
        self._experiment = experiment
        self.saved = 0
        self._checkpoints = None
        self._last_save = -np.inf
        self._writes = False
        if path is None:
            return
        self._writes = processes.is_first()
        config, seeds = experiment.config, experiment.seeds
        processes.of_first(lambda: check_workdir(path, config, seeds, resume))

    def open(self) -> None:
        """Makes the folder, once nothing is wrong with the run that it is for."""
        if self.path is not None:
            processes.of_first(self._open)

    def _open(self):
        metrics.make_folder(self.path)
        if not (self.path / "config.json").exists():  # else it is the same
            saved = saved_config(self._experiment.config, self._experiment.seeds)
            metrics.write_json(self.path / "config.json", saved)
        self._checkpoints = Checkpoints(self.path / "checkpoints")

    def restore(self, engine: Engine) -> list[dict]:
        """Puts the engine where the newest checkpoint was; returns the rows until there."""
        if self.path is None:
            return []
        self.saved, rows = processes.of_first(lambda: self._newest(engine))
        while self.saved > engine.ends[engine.stage_number]:
            engine.next_stage(processes.of_first(lambda: self._read_facts(engine)))
        if self.saved:
            like, treedef = jax.tree.flatten(engine.saved())
            saved = processes.of_first(lambda: self._checkpoints.restore(self.saved, like))
            engine.go_on(treedef.unflatten(map(_place, saved, like)), self.saved)
        return rows

    def _newest(self, engine):
        self.saved = self._checkpoints.latest() or 0
        rows = metrics.keep_until(self.path / "metrics.jsonl", self.saved)
        self._check_rows(rows, engine)
        return self.saved, rows

    def finished(self, all_rounds: bool) -> bool:
        """Whether an earlier process has left nothing to do."""
        if not all_rounds or self.path is None:
            return False
        return processes.of_first((self.path / "summary.json").exists)

    def read_summary(self) -> dict:
        """What that process measured."""
        path = self.path / "summary.json"
        return processes.of_first(lambda: files.read_json(path, files.FINISHED))

    def _check_rows(self, rows, engine):
        experiment = engine.experiment
        evaluated = max(t for t in _evaluations(experiment, engine) if t <= self.saved)
        there = sum(row["round"] == evaluated for row in rows)
        if evaluated and there != len(experiment.seeds):
            raise BadInput(
                f"{self.path / 'metrics.jsonl'} lacks round {evaluated}, which checkpoint"
                f" {self.saved} has; without the folder checkpoints the run starts anew"
            )

    def keep_facts(self, facts: list[dict], engine: Engine) -> None:
        """Writes what a stage begins with: a later process cannot find it again."""
        if not self._writes or engine.stage.prepare is None:
            return
        metrics.make_folder(self.path / "stages")
        for i, found in enumerate(facts):
            np.savez(self._facts_file(engine.stage, i), **found)

    def _read_facts(self, engine):
        stage = engine.experiment.stages[engine.stage_number + 1]
        if stage.prepare is None:
            return [{} for _ in engine.lanes]
        files = [self._facts_file(stage, i) for i in range(len(engine.lanes))]
        try:
            return [dict(np.load(file)) for file in files]
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise BadInput(f"{files[0].parent} lacks what a stage began with: {error}") from error

    def _facts_file(self, stage, lane):
        return self.path / "stages" / f"{stage.name}-{lane}.npz"

    def append(self, rows: list[dict]) -> None:
        """Adds rows to metrics.jsonl."""
        if self._writes:
            metrics.append(self.path / "metrics.jsonl", rows)

    def save(self, engine: Engine, force: bool, part: Callable = lambda saved: saved) -> None:
        """A checkpoint, or of a part of it, unless the last one is a few seconds old."""
        now = time.monotonic()
        if self._checkpoints and (force or now - self._last_save >= SAVE_SECONDS):
            self._checkpoints.save(engine.played, part(engine.saved()))
            self.saved, self._last_save = engine.played, now

    def finish(self, engine: Engine, rows: list[dict], **more) -> dict:
        """Writes summary.json, which it returns, and the plots."""
        summary = {**_summary(self._experiment, engine, rows), **more}
        if self._writes:
            metrics.write_json(self.path / "summary.json", summary)
            from fedjax_lab import plots

            curve = plots.learning_curve(rows, self._experiment.config.method.name)
            metrics.make_folder(self.path / "plots")
            curve.savefig(self.path / "plots" / "learning_curve.png", dpi=120)
        return summary

    def close(self) -> None:
        """Waits for a checkpoint that is being written."""
        if self._checkpoints:
            self._checkpoints.close()


def _place(saved, like):
    return jax.device_put(saved, like.sharding) if isinstance(like, jax.Array) else saved


class _Folders:
    """The workdirs of a joint run: each takes what is its own seeds', a span of all."""

    def __init__(self, folders: list[_Folder], counts: list[int]):
        self._folders = folders
        ends = np.cumsum(counts)
        self._spans = [slice(end - n, end) for end, n in zip(ends, counts, strict=True)]
        self._rows = [[] for _ in folders]

    def open(self) -> None:
        """Makes them."""
        for folder in self._folders:
            folder.open()

    def append(self, new: list[dict]) -> None:
        """Adds the rows of one evaluation, one of each seed."""
        for folder, span, rows in zip(self._folders, self._spans, self._rows, strict=True):
            rows += new[span]
            folder.append(new[span])

    def save(self, engine: Engine, force: bool) -> None:
        """Checkpoints, each as the run alone would save it."""
        for folder, span in zip(self._folders, self._spans, strict=True):
            folder.save(engine, force, functools.partial(_part, span))

    def finish(self, engine: Engine, rows: list[dict], diverged: dict | None = None) -> None:
        """Writes summaries and plots; nothing where one run has diverged, maybe not this one."""
        if diverged is None:
            for folder, own in zip(self._folders, self._rows, strict=True):
                folder.finish(engine, own, runs_together=len(self._folders))

    def close(self) -> None:
        """Waits for checkpoints that are being written."""
        for folder in self._folders:
            folder.close()


def _part(span, saved):
    """What a run alone would save, of what the engine of a joint run gives."""
    states, sums, seconds, sent = saved
    own = span if span.stop - span.start > 1 else span.start
    states, sums = jax.tree.map(lambda a: a[own], (states, sums))
    return states, sums, seconds, sent[span]
