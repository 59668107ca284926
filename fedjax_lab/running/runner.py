"""Executes a run from its first to its last round: training, evaluation, divergence, interrupts."""

import contextlib
import functools
import platform
import resource
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import STOP, tree
from fedjax_lab.engine import flops, processes
from fedjax_lab.engine.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import transforming
from fedjax_lab.experiment.experiment import Experiment
from fedjax_lab.experiment.joint import join
from fedjax_lab.running import guaranteed, interrupts, loggers, stopping, warm_start
from fedjax_lab.running.loggers import followers
from fedjax_lab.running.profile import Profile
from fedjax_lab.running.progress import ProgressBar
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.running.storage.workdir import Workdir, Workdirs, owned
from fedjax_lab.simulation import evaluate
from fedjax_lab.types import State

OnEvaluation = Callable[[dict, Callable[[], State]], Any]


class Diverged(RuntimeError):
    """Raised when a loss or weight becomes non-finite; earlier evaluations are kept."""


class Interrupted(KeyboardInterrupt):
    """Raised when a signal, or run.max_seconds before the first evaluation, stops a run.

    The state of the run has been saved.
    """


class Result(NamedTuple):
    """The results of a run: the contents of its files, and the final state of each seed."""

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
    log: loggers.Chosen = (),
    on_evaluation: OnEvaluation | None = None,
) -> Result:
    """Runs an experiment to its last round, starting from the newest intact checkpoint, if any.

    A rule of the config may end the run earlier, see `stopping`.

    Args:
      experiment: the experiment to run.
      workdir: the folder for all results; None: nothing is written.
      resume: whether the folder may already hold a part of this run.
      quiet: whether to print nothing.
      profile: how many rounds to profile, see `running/profile.py`; does not change any result.
      log: the loggers, see `running/loggers`.
      on_evaluation: a function called after each evaluation, see `fedjax_lab.run`.

    Raises:
      Diverged: a loss or weight became non-finite.
      Interrupted: a signal, or run.max_seconds before the first evaluation, stopped the run.
      BadInput: the workdir holds another run or is in use, the run has fewer rounds than are to be
        profiled, or there is no such logger.
    """
    listeners, seeds = _Listeners(loggers.find(log), on_evaluation), experiment.simulation.seeds
    with owned(workdir, experiment.config, seeds, resume), Profile(profile, workdir) as recorder:
        recorder.check(experiment.simulation, 0)
        experiment = warm_start.warmed(experiment)
        folder = Workdir(workdir, experiment)
        try:
            return _run(experiment, folder, quiet, recorder, listeners)
        finally:
            folder.close()


def _run(experiment, folder, quiet, profile, listeners):
    clock = stopping.Clock(experiment.config.run.max_seconds)
    engine = Engine(experiment.simulation, folder=folder.path)
    folder.open()
    rows = folder.restore(engine)
    profile.check(experiment.simulation, engine.played)
    profile.open()
    if engine.played == 0:
        folder.keep_facts(engine.first_facts, engine)
    with followers.of_run(listeners.loggers, experiment, folder.path, rows) as following:
        if folder.finished(rows):
            summary = folder.read_summary()
        else:
            told = following.tell, listeners.on_evaluation
            with guaranteed.told_in_rows(experiment, _upcoming(folder, engine)) as privacy:
                live = _Live(experiment, engine, folder, rows, profile, clock, privacy, *told)
                summary = _finish(live, _play(live, quiet))
        following.end(summary)
    return Result(summary, rows, engine.final_states(), folder.path)


def run_together(parts: list[Experiment], workdirs: list[Path], log: loggers.Chosen = ()) -> None:
    """Executes several runs as one computation, each with a new workdir of its own.

    Each workdir holds the files of an ordinary run. After any error, including a divergence of one
    of the runs, each of them can therefore be resumed separately.

    Args:
      parts: experiments that `joint.join` can combine.
      workdirs: one new folder for each experiment.
      log: the loggers, see `running/loggers`.
    """
    joint, begin = join(parts), loggers.find(log)
    stopping.check_no_rule(joint.config)
    counts = [len(part.simulation.seeds) for part in parts]
    with contextlib.ExitStack() as until_the_end:
        for part, path in zip(parts, workdirs, strict=True):
            until_the_end.enter_context(owned(path, part.config, part.simulation.seeds, False))
        each = [Workdir(*of) for of in zip(workdirs, parts, strict=True)]
        folders = Workdirs(each, counts)
        until_the_end.callback(folders.close)
        engine = Engine(joint.simulation)
        folders.open()
        following = [
            until_the_end.enter_context(followers.of_run(begin, part, path, []))
            for part, path in zip(parts, workdirs, strict=True)
        ]
        tell, clock = followers.joint(following, counts), stopping.Clock(0)
        in_rows = guaranteed.told_in_rows(joint, _upcoming(folders, engine))
        privacy = until_the_end.enter_context(in_rows)
        live = _Live(joint, engine, folders, [], Profile(None, None), clock, privacy, tell)
        summaries = _finish(live, _play(live, quiet=True))
        for follower, summary in zip(following, summaries, strict=True):
            follower.end(summary)


def _upcoming(folder, engine):
    """The remaining evaluations, each given as the number of rounds after which it happens."""
    return [after for after in folder.evaluations(engine) if after > engine.played]


class _Listeners(NamedTuple):
    """The loggers and the callback that follow a run."""

    loggers: dict[str, loggers.Begin]
    on_evaluation: OnEvaluation | None


class _Live(NamedTuple):
    """A run in progress, or several runs joined into one computation."""

    experiment: Experiment
    engine: Engine
    folder: Workdir | Workdirs
    rows: list[dict]  # of all evaluations
    profile: Profile
    clock: stopping.Clock
    privacy: Callable[[int], dict[str, Any]]  # number of rounds -> privacy entries of a row
    tell: Callable[[list[dict]], None]  # passes an evaluation to the loggers
    on_evaluation: OnEvaluation | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the last round has been played."""
        return self.engine.played == self.experiment.simulation.plan.rounds

    @property
    def rule(self) -> str:
        """The name of the stopping rule that the evaluations have met, or "" for none."""
        return "" if self.is_whole else stopping.rule_met(self.experiment, self.rows)


def _finish(live, rule):
    """Writes the final files and returns the summary.

    rule: the stopping rule that ended the run early, or "".
    """
    stopped = {"stopped": {"rule": rule, "round": live.engine.played}} if rule else {}
    return live.folder.finish(functools.partial(_summary, live.engine), live.rows, **stopped)


def _play(live, quiet):
    """Plays the remaining rounds. Returns the rule that ended the run early, or ""."""
    simulation, engine = live.experiment.simulation, live.engine
    if live.is_whole or live.rule:
        return live.rule
    with ProgressBar(simulation.plan.rounds, engine.played, quiet) as progress:
        for line in live.experiment.remarks:
            progress.tell(line)
        if remark := guaranteed.remark(live.experiment):
            progress.tell(remark)
        progress.say("compiling")
        engine.compile()
        progress.start_clock(engine.played)
        name = f"{live.experiment.config.method.name}{_clients(live.experiment)}"
        progress.say(f"{name}, {simulation.strategy.name}")
        if simulation.strategy.sharding is not None or simulation.host is not None:
            progress.say(simulation.placement)
        rule = _play_stage(live, progress)
        while engine.stage_is_over and not rule:
            live.folder.keep_facts(engine.next_stage(), engine)
            engine.compile()
            progress.start_clock(engine.played)
            progress.say(f"stage {engine.stage.name}")
            rule = _play_stage(live, progress)
    return rule


def _clients(experiment):
    """The number of training clients in words if the data determine it; "" if the config does."""
    number = len(experiment.simulation.federations[0].train)
    return "" if experiment.config.partition.num_clients else f" with {number} clients"


def _play_stage(live, progress):
    """Plays the remaining rounds of a stage. Returns the rule that ended the run early, or "".

    An interrupt or the time limit takes effect after the state has been saved.
    """
    engine, rule = live.engine, ""
    if remark := _new_clients_unscored(live.experiment, engine.stage):
        progress.tell(remark)
    live.profile.begin_stage(engine)
    times = live.folder.evaluations(engine)
    with interrupts.delayed() as stop:
        while engine.played < engine.ends[engine.stage_number] and not rule:
            upcoming = np.searchsorted(times, engine.played, "right")
            goal, since = times[upcoming], times[upcoming] - times[upcoming - 1]
            while engine.played < goal and not _cut(live, stop):
                live.profile.play(engine, goal - engine.played, progress)
                progress.rounds(engine.played, engine.played == goal)
                _check_cohorts(live.experiment, engine)
                _check_finite(live.experiment, engine, live.folder, live.rows)
            if engine.played == goal:
                rule = _evaluate(live, since, progress)
            cut = _cut(live, stop)
            live.folder.save(engine, force=bool(rule or cut) or engine.played in engine.ends)
            if cut == "interrupted" or (cut and not live.rows):
                raise Interrupted(_after(live, cut))
            rule = rule or cut
    return rule


def _cut(live, stop):
    """The reason to stop now, "interrupted" or "max_seconds"; "" to continue."""
    if live.is_whole:
        return ""
    if processes.anywhere(stop.is_set()):
        return "interrupted"
    return "max_seconds" if live.clock.runs and processes.anywhere(live.clock.is_over) else ""


def _after(live, cut):
    played = f"after round {live.engine.played} of {live.experiment.simulation.plan.rounds}"
    if cut == "interrupted":
        return f"interrupted {played}"
    return f"stopped by {cut} {played}, before the first evaluation"


def _evaluate(live, since, progress):
    """Evaluates, records and reports the result. Returns the rule that ends the run, or "".

    since: the number of rounds since the last evaluation.
    """
    new = _rows(live, since)
    live.rows.extend(new)
    live.folder.append(new)
    progress.evaluated(new)
    live.tell(new)
    try:
        has_enough = live.on_evaluation is not None and _ask(live.on_evaluation, live.engine, new)
    except BaseException:
        live.folder.save(live.engine, force=True)
        raise
    if processes.anywhere(has_enough) and not live.is_whole:
        return "on_evaluation"
    return live.rule


def _ask(on_evaluation, engine, rows):
    """Calls the user's function for each seed; returns whether any call returned STOP."""
    copies = functools.cache(lambda: [_copy(state) for state in engine.final_states()])
    played = engine.played

    def state_of(i):
        if engine.played != played:
            raise RuntimeError("the state is only available until on_evaluation returns")
        return copies()[i]

    answers = [on_evaluation({**row}, functools.partial(state_of, i)) for i, row in enumerate(rows)]
    return any(isinstance(answer, str) and answer == STOP for answer in answers)


def _copy(state):
    """A copy of a state in NumPy arrays; random keys, which NumPy cannot hold, as JAX arrays."""

    def copy(a):
        return jnp.copy(a) if tree.is_key(a) else np.array(processes.on_host(a))

    return jax.tree.map(copy, state)


def _new_clients_unscored(experiment, stage):
    """A remark if the stage has no model with which new clients can be scored; "" otherwise."""
    rows = experiment.simulation.federations[0].new_test
    embedded = stage.view is not None and stage.view.embedded
    if rows is None or embedded or evaluate.scores_new(stage.method):
        return ""
    return (
        f"the {len(rows)} new clients (config.partition.new_clients) are not scored in stage"
        f" {stage.name}: {experiment.config.method.name} has no model for a client that took no"
        " part in training"
    )


def _rows(live, since):
    """One metrics row per seed, for the `since` rounds since the last evaluation."""
    experiment, engine = live.experiment, live.engine
    sums, cost = engine.progress(), engine.round_cost
    before = {row["seed"]: row.get("flops") for row in live.rows}  # None: by an earlier version
    rows = []
    scored = zip(experiment.simulation.seeds, engine.evaluate(), engine.recorded(), strict=True)
    for i, (seed, scores, recorded) in enumerate(scored):
        up, down = engine.bytes[i]
        operations = before.get(seed, 0.0)
        if operations is not None:
            operations += cost.of(since, float(sums.steps[i]))
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
                **live.privacy(engine.played),
                **({} if operations is None else {"flops": operations}),
                **({"recorded": recorded} if recorded else {}),
            }
        )
    return rows


def _check_cohorts(experiment, engine):
    """Raises BadInput if a user's sampling has returned invalid clients or shares."""
    misdrawn = engine.progress().misdrawn
    if misdrawn is None or (misdrawn < 0).all():
        return
    i, number = int(np.argmax(misdrawn >= 0)), len(experiment.simulation.training[0].train)
    raise BadInput(
        f"{transforming.sampling_name(experiment.config)} returned in round {misdrawn[i] + 1} (seed"
        f" {experiment.simulation.seeds[i]}) a client that does not exist, or shares that are below"
        f" 0 or do not sum to 1; the clients are 0 .. {number - 1}"
    )


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
        **metric_rows.summarize(rows, seeds),
        "lower_is_better": [
            metric.name
            for metric in evaluate.all_metrics(experiment.simulation.plan)
            if metric.lower_is_better
        ],
        "seconds": engine.seconds,
        "evaluate_seconds": engine.evaluate_seconds,
        "compile_seconds": engine.compile_seconds,
        "rounds_per_second": _ratio(played * len(seeds), seconds),
        **_pace(rows, seeds),
        "examples_per_second": _ratio(examples, seconds),
        "utilisation": _ratio(steps, lane_steps),
        "peak_memory_bytes": peak_memory(),
        "bytes_up": sum(row["bytes_up"] for row in newest),
        "bytes_down": sum(row["bytes_down"] for row in newest),
        "strategy": experiment.simulation.strategy.name,
        "seeds_vectorised": engine.together,
        **guaranteed.in_summary(experiment, rows, engine.played),
        "data": _data(experiment),
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "versions": _versions(),
    }


def _data(experiment):
    """The summary's entry about the data that a run used."""
    dataset = experiment.dataset
    name = experiment.config.data.name
    return {"name": name, "license": dataset.license, "citation": dataset.citation}


def _versions():
    packages = {name: metadata.version(name) for name in ("jax", "flax", "optax", "numpy")}
    return {"python": platform.python_version(), **packages}


def _pace(rows, seeds):
    """Seconds per round, floating-point operations, and operations per second."""
    pace = metric_rows.pace(rows, seeds)
    return {**pace, "flops_utilization": flops.utilization(pace["flops_per_second"])}


def _ratio(a, b):
    return float(a / b) if b else None


def peak_memory() -> int:
    """The peak memory use in bytes: of the accelerator if there is one, else of the process."""
    stats = jax.local_devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats:
        return stats.get("peak_bytes_in_use")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else 1024 * peak
