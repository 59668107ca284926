"""A run from its first round to its last: evaluations, divergence, interrupts."""

import contextlib
import functools
import platform
import resource
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedjax_lab import evaluate, interrupts, processes
from fedjax_lab.engine import Engine
from fedjax_lab.experiment import Experiment, join, of_seeds
from fedjax_lab.running import growth, metrics, more_seeds
from fedjax_lab.running.profile import Profile
from fedjax_lab.running.progress import ProgressBar
from fedjax_lab.running.workdir import Workdir, Workdirs, owned
from fedjax_lab.types import State


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
    experiment: Experiment,
    workdir: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    profile: int | None = None,
) -> Result:
    """Runs to the last round, from the newest whole checkpoint of `workdir` where there is one.

    profile: how many rounds to record, see `running/profile.py`; no result depends on it.

    Raises Diverged, Interrupted, BadInput (a workdir that holds another run or is in use; fewer
    rounds than are to be recorded).
    """
    seeds = experiment.simulation.seeds
    with owned(workdir, experiment.config, seeds, resume):
        there = processes.of_first(lambda: workdir and growth.seeds(workdir)) or seeds
        new = [seed for seed in seeds if seed not in there]
        experiment = of_seeds(experiment, [*there, *new])
        if new:
            return _run_with_more(experiment, len(there), workdir, quiet, profile)
        return _run_alone(experiment, workdir, quiet, profile)


def _run_alone(experiment, workdir, quiet, profile=None):
    """A run of the seeds that its folder has."""
    with Profile(profile, workdir) as recorder:
        recorder.check(experiment.simulation, 0)
        folder = Workdir(workdir, experiment)
        try:
            return _run(experiment, folder, quiet, recorder)
        finally:
            folder.close()


def _run_with_more(experiment, count, workdir, quiet, profile):
    """Ends the run of the first seeds, which the folder has, and of the others; makes them one."""
    seeds, rounds = experiment.simulation.seeds, experiment.simulation.plan.rounds
    first = _run_alone(of_seeds(experiment, seeds[:count]), workdir, quiet)
    more_seeds.check_whole(workdir, first.summary["rounds"], rounds)
    inner = processes.of_first(lambda: more_seeds.make_folder(workdir))
    more = run(of_seeds(experiment, seeds[count:]), inner, True, quiet, profile)
    more_seeds.check_whole(inner, more.summary["rounds"], rounds)
    more_seeds.merge(experiment, workdir)
    return _run_alone(experiment, workdir, quiet)


def _run(experiment, folder, quiet, profile):
    engine = Engine(experiment.simulation, folder=folder.path)
    folder.open()
    rows = folder.restore(engine)
    profile.check(experiment.simulation, engine.played)
    profile.open()
    if engine.played == 0:
        folder.keep_facts(engine.first_facts, engine)
    if folder.finished(engine.played == experiment.simulation.plan.rounds):
        return Result(folder.read_summary(), rows, engine.final_states(), folder.path)
    if engine.played < experiment.simulation.plan.rounds:
        _play(experiment, engine, folder, rows, quiet, profile)
    summary = folder.finish(functools.partial(_summary, engine), rows)
    return Result(summary, rows, engine.final_states(), folder.path)


def run_together(parts: list[Experiment], workdirs: list[Path]) -> None:
    """Runs that `experiment.join` takes, as one computation, each with a new workdir of its own.

    What each has saved is that of an ordinary run, so that after any error, Diverged, which may
    be another's, among them, it can be resumed alone.
    """
    joint = join(parts)
    with contextlib.ExitStack() as until_the_end:
        for part, path in zip(parts, workdirs, strict=True):
            until_the_end.enter_context(owned(path, part.config, part.simulation.seeds, False))
        each = [Workdir(*of) for of in zip(workdirs, parts, strict=True)]
        folders = Workdirs(each, [len(part.simulation.seeds) for part in parts])
        until_the_end.callback(folders.close)
        engine = Engine(joint.simulation)
        folders.open()
        rows: list[dict] = []
        _play(joint, engine, folders, rows, quiet=True, profile=Profile(None, None))
        folders.finish(functools.partial(_summary, engine), rows)


def _play(experiment, engine, folder, rows, quiet, profile):
    with ProgressBar(experiment.simulation.plan.rounds, engine.played, quiet) as progress:
        progress.say("compiling")
        engine.compile()
        progress.start_clock()
        progress.say(f"{experiment.config.method.name}, {experiment.simulation.strategy.name}")
        simulation = experiment.simulation
        if simulation.strategy.sharding is not None or simulation.host is not None:
            progress.say(simulation.placement)
        _play_stage(experiment, engine, folder, rows, progress, profile)
        while engine.stage_is_over:
            folder.keep_facts(engine.next_stage(), engine)
            engine.compile()
            progress.start_clock()
            progress.say(f"stage {engine.stage.name}")
            _play_stage(experiment, engine, folder, rows, progress, profile)


def _play_stage(experiment, engine, folder, rows, progress, profile):
    """Plays the rounds of a stage that are left. An interrupt waits until the state is saved."""
    profile.begin_stage(engine)
    rounds, times = experiment.simulation.plan.rounds, folder.evaluations(engine)
    with interrupts.delayed() as stop:
        while engine.played < engine.ends[engine.stage_number]:
            upcoming = np.searchsorted(times, engine.played, "right")
            goal, since = times[upcoming], times[upcoming] - times[upcoming - 1]
            while engine.played < goal and not processes.anywhere(stop.is_set()):
                profile.play(engine, goal - engine.played, progress)
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


def _rows(experiment, engine, since):
    """One metrics row per seed, for the `since` rounds from the last evaluation on."""
    sums = engine.progress()
    rows = []
    scored = zip(experiment.simulation.seeds, engine.evaluate(), engine.recorded(), strict=True)
    for i, (seed, scores, recorded) in enumerate(scored):
        up, down = engine.bytes[i]
        rows.append(
            {
                "round": engine.played,
                "seed": seed,
                "stage": engine.stage.name,
                "train_loss": float(sums.train_loss[i] / since),
                **evaluate.summarize(
                    scores, experiment.dataset.domains, experiment.simulation.plan.metrics
                ),
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
    where = {"round": int(diverged[i]) + 1, "seed": experiment.simulation.seeds[i]}
    if rows:
        folder.finish(functools.partial(_summary, engine), rows, diverged=where)
    raise Diverged(
        f"{experiment.config.method.name} diverged in round {where['round']} (seed"
        f" {where['seed']}): a loss or a weight is not finite; try a smaller config.local.lr"
    )


def _summary(engine, experiment, rows):
    seeds = experiment.simulation.seeds
    played, seconds, (examples, steps, lane_steps) = engine.session
    newest = [row for row in rows if row["round"] == rows[-1]["round"]]
    return {
        "method": experiment.config.method.name,
        "seeds": seeds,
        "rounds": engine.played,
        **metrics.summarize(rows, seeds),
        "lower_is_better": [
            metric.name
            for metric in evaluate.all_metrics(experiment.simulation.plan)
            if metric.lower_is_better
        ],
        "seconds": engine.seconds,
        "evaluate_seconds": engine.evaluate_seconds,
        "compile_seconds": engine.compile_seconds,
        "rounds_per_second": _ratio(played * len(seeds), seconds),
        "examples_per_second": _ratio(examples, seconds),
        "utilisation": _ratio(steps, lane_steps),
        "peak_memory_bytes": peak_memory(),
        "bytes_up": sum(row["bytes_up"] for row in newest),
        "bytes_down": sum(row["bytes_down"] for row in newest),
        "strategy": experiment.simulation.strategy.name,
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
