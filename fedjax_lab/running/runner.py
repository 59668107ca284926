"""Executes a run from its first to its last round: training, evaluation, divergence, interrupts."""

import contextlib
import functools
import itertools
import math
import platform
import resource
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import STOP, defaults, tree
from fedjax_lab.engine import flops, processes
from fedjax_lab.engine.engine import Engine, Snapshot
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import transforming, unlike_models
from fedjax_lab.experiment.experiment import Experiment
from fedjax_lab.experiment.joint import join
from fedjax_lab.running import (
    guaranteed,
    hints,
    interrupts,
    largest,
    loggers,
    stopping,
    tasks,
    warm_start,
)
from fedjax_lab.running.loggers import followers
from fedjax_lab.running.profile import Profile
from fedjax_lab.running.progress import ProgressBar
from fedjax_lab.running.storage import metric_rows, stage_facts
from fedjax_lab.running.workdir import Workdir, is_over, owned, times
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
    stage: int  # index of the last stage that was trained


@defaults.restored()
def run(
    experiment: Experiment,
    workdir: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    profile: int | None = None,
    log: loggers.Chosen = (),
    on_evaluation: OnEvaluation | None = None,
    part: str = "",
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
      part: the name of the run in a sweep, see `ProgressBar`.

    Raises:
      Diverged: a loss or weight became non-finite.
      Interrupted: a signal, or run.max_seconds before the first evaluation, stopped the run.
      BadInput: the workdir holds another run or is in use, the run has fewer rounds than are to be
        profiled, or there is no such logger.
    """
    begin, seeds = loggers.find(log), experiment.simulation.seed_numbers
    bar = functools.partial(ProgressBar, quiet=quiet, part=part)
    with owned(workdir, experiment.config, seeds, resume), Profile(profile, workdir) as recorder:
        recorder.check(experiment.simulation, 0)
        experiment = warm_start.warmed(experiment)
        with _closing(workdir, experiment) as folder, largest.named(experiment):
            return _run(experiment, folder, bar, recorder, begin, on_evaluation)


def _closing(path, experiment):
    """A context with the `Workdir` of a run, or with None."""
    return contextlib.closing(Workdir(path, experiment)) if path else contextlib.nullcontext()


def _run(experiment, folder, bar, profile, begin, on_evaluation):
    end, path = stopping.deadline(experiment.config.run.max_seconds), folder and folder.path
    new = functools.partial(Engine, experiment.simulation, folder=path)
    engine, rows = folder.restore(new) if folder else (new(), [])
    profile.check(experiment.simulation, engine.played)
    profile.open()
    if folder and engine.played == 0:
        stage_facts.write(path, engine.stage, engine.first_facts)
    with followers.start(begin, experiment, path, rows) as following:
        part = _Part(experiment, folder, following, rows)
        summary = folder.summary() if folder and is_over(experiment, engine, rows) else None
        if summary is None:
            live = _Live(experiment, engine, [part], profile, end, on_evaluation)
            (summary,) = _trained(live, bar)
        following.end(summary)
    return Result(summary, rows, engine.final_states(), path, engine.stage_number)


@defaults.restored()
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
    with contextlib.ExitStack() as until_the_end:
        enter = until_the_end.enter_context
        for part, path in zip(parts, workdirs, strict=True):
            enter(owned(path, part.config, part.simulation.seed_numbers, False))
        folders = [enter(_closing(*of)) for of in zip(workdirs, parts, strict=True)]
        enter(largest.named(joint))
        engine = Engine(joint.simulation)
        for folder in folders:
            folder.open()
        each, ends = [], itertools.accumulate(len(part.simulation.seeds) for part in parts)
        for part, folder, end in zip(parts, folders, ends, strict=True):
            following = enter(followers.start(begin, part, folder.path, []))
            span = slice(end - len(part.simulation.seeds), end)
            each.append(_Part(part, folder, following, [], span))
        live = _Live(joint, engine, each, Profile(None, None))
        bar = functools.partial(ProgressBar, quiet=False, part=f"{len(parts)} cells together")
        for one, summary in zip(each, _trained(live, bar), strict=True):
            one.following.end(summary)


class _Part(NamedTuple):
    """One of the runs that are joined into one computation; usually the only one."""

    experiment: Experiment
    folder: Workdir | None
    following: followers.Followers
    rows: list[dict]  # of all its evaluations
    span: slice = slice(None)  # its seeds among those of all runs

    def snapshot(self, whole: Snapshot) -> Snapshot:
        """This run's part of a snapshot, as if it were executed alone."""
        if self.span == slice(None):
            return whole
        lanes = self.span if self.span.stop - self.span.start > 1 else self.span.start
        states, sums = jax.tree.map(lambda a: a[lanes], (whole.states, whole.sums))
        return whole._replace(states=states, sums=sums, bytes=whole.bytes[self.span])


class _Live(NamedTuple):
    """A run in progress, or several runs joined into one computation."""

    experiment: Experiment
    engine: Engine
    parts: list[_Part]
    profile: Profile
    end: float = math.inf  # of the time limit
    on_evaluation: OnEvaluation | None = None
    times: Sequence[int] = ()  # 0, and the rounds after which there are evaluations
    privacy: Callable[[int], dict[str, Any]] = lambda rounds: {}  # -> privacy entries of a row

    @property
    def rows(self) -> list[dict]:
        """The rows of all evaluations."""
        return [row for part in self.parts for row in part.rows]

    @property
    def is_whole(self) -> bool:
        """Whether the last round has been played."""
        return self.engine.played == self.experiment.simulation.plan.rounds

    @property
    def rule(self) -> str:
        """The name of the stopping rule that the evaluations have met, or "" for none."""
        return "" if self.is_whole else stopping.rule_met(self.experiment, self.rows)


def _trained(live, bar):
    """Plays the remaining rounds, and writes the final files. Returns the summary of each part.

    bar: (rounds, rounds played) -> the `ProgressBar`.
    """
    folder, engine = live.parts[0].folder, live.engine
    evaluations = times(folder and folder.path, live.experiment, engine)
    upcoming = [after for after in evaluations if after > engine.played]
    with guaranteed.stated_in_rows(live.experiment, upcoming) as privacy:
        live = live._replace(times=evaluations, privacy=privacy)
        rule = _play(live, bar)
        return _finish(live, {"stopped": {"rule": rule, "round": engine.played}} if rule else {})


def _finish(live, more):
    """Writes the final files of each part and returns the summaries.

    more: additional entries of them.
    """
    together = {"runs_together": len(live.parts)} if len(live.parts) > 1 else {}
    summaries = []
    for part in live.parts:
        summary = {**_summary(live.engine, part.experiment, part.rows), **together, **more}
        summary |= hints.run_hints(part.experiment, live.engine.states[0], summary)
        summaries.append(part.folder.finish(summary, part.rows) if part.folder else summary)
    return summaries


def _save(live, force):
    """Saves a checkpoint for each part, identical to that of the run executed alone."""
    for part in live.parts:
        if part.folder:
            part.folder.save(live.engine, force, part.snapshot)


def _play(live, bar):
    """Plays the remaining rounds. Returns the rule that ended the run early, or ""."""
    simulation, engine = live.experiment.simulation, live.engine
    if live.is_whole or live.rule:
        return live.rule
    with bar(simulation.plan.rounds, engine.played) as progress:
        for line in live.experiment.remarks:
            progress.tell(line)
        if remark := guaranteed.remark(live.experiment):
            progress.tell(remark)
        progress.say("compiling")
        _compile(live, progress)
        progress.start_clock(engine.played)
        name = f"{live.experiment.config.method.name}{_clients(live.experiment)}"
        progress.say(f"{name}, {simulation.strategy.name}")
        if simulation.strategy.sharding is not None or simulation.host is not None:
            progress.say(simulation.placement)
        rule = _play_stage(live, progress)
        while engine.stage_is_over and not rule:
            facts = engine.next_stage()
            for part in live.parts:
                if part.folder:
                    stage_facts.write(part.folder.path, engine.stage, facts)
            _compile(live, progress)
            progress.start_clock(engine.played)
            progress.say(f"stage {engine.stage.name}")
            rule = _play_stage(live, progress)
    return rule


def _compile(live, progress):
    """Compiles the programs of the stage; if that takes long, a line says what is compiled."""
    config, engine = live.experiment.config, live.engine
    text = (
        f"still compiling the rounds and the evaluation of {config.method.name} (stage"
        f" {engine.stage.name}): model {config.model.name}, batches of {config.local.batch_size}"
        f" examples of shape {list(live.experiment.dataset.x.shape[1:])},"
        f" {live.experiment.simulation.strategy.name}"
    )
    with progress.telling_if_slow(text):
        engine.compile()


def _clients(experiment):
    """The number of training clients in words if the data determine it; "" if the config does."""
    number = len(experiment.simulation.seeds[0].federation.train)
    return "" if experiment.config.partition.num_clients else f" with {number} clients"


def _play_stage(live, progress):
    """Plays the remaining rounds of a stage. Returns the rule that ended the run early, or "".

    An interrupt or the time limit takes effect after the state has been saved.
    """
    engine, rule = live.engine, ""
    if remark := _new_clients_unscored(live.experiment, engine.stage):
        progress.tell(remark)
    live.profile.begin_stage(engine)
    times = live.times
    with interrupts.delayed() as stop:
        while engine.played < engine.ends[engine.stage_number] and not rule:
            upcoming = np.searchsorted(times, engine.played, "right")
            goal, since = times[upcoming], times[upcoming] - times[upcoming - 1]
            while engine.played < goal and not _cut(live, stop):
                live.profile.play(engine, goal - engine.played, progress)
                progress.rounds(engine.played, engine.played == goal)
                _check_cohorts(live.experiment, engine)
                _check_finite(live)
            if engine.played == goal:
                rule = _evaluate(live, since, progress)
            cut = _cut(live, stop)
            _save(live, force=bool(rule or cut) or engine.played in engine.ends)
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
    has_limit = live.end < math.inf
    return "max_seconds" if has_limit and processes.anywhere(stopping.is_past(live.end)) else ""


def _after(live, cut):
    played = f"after round {live.engine.played} of {live.experiment.simulation.plan.rounds}"
    if cut == "interrupted":
        return f"interrupted {played}"
    return f"stopped by {cut} {played}, before the first evaluation"


def _evaluate(live, since, progress):
    """Evaluates, records and reports the result. Returns the rule that ends the run, or "".

    since: the number of rounds since the last evaluation.
    """
    before, new = hints.clipped(live.rows or [{}]), _rows(live, since)
    if not before and (line := hints.clipped(new)):
        progress.tell(line)
    for part in live.parts:
        part.rows.extend(new[part.span])
        if part.folder:
            part.folder.append(new[part.span])
        part.following.tell(new[part.span])
    progress.evaluated(new)
    try:
        has_enough = live.on_evaluation is not None and _ask(live.on_evaluation, live.engine, new)
    except BaseException:
        _save(live, force=True)
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
    rows = experiment.simulation.seeds[0].federation.new_test
    if rows is None or stage.embeddings is not None or evaluate.scores_new(stage.method):
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
    seconds = sums.counts.get("seconds")
    before = {row["seed"]: row.get("flops") for row in live.rows}  # None: by an earlier version
    rows = []
    seeds = experiment.simulation.seed_numbers
    scored = zip(seeds, engine.evaluate(), engine.recorded(), strict=True)
    for i, (seed, scores, recorded) in enumerate(scored):
        up, down = engine.bytes[i]
        operations = None if cost is None else before.get(seed, 0.0)
        if operations is not None:
            operations += cost.operations(since, float(sums.steps[i]))
        rows.append(
            {
                "round": engine.played,
                "seed": seed,
                "stage": engine.stage.name,
                "train_loss": float(sums.train_loss[i] / since),
                **_measured(experiment, scores, i),
                "bytes_up": int(up),
                "bytes_down": int(down),
                "seconds": engine.seconds,
                **({} if seconds is None else {"virtual_seconds": float(seconds[i])}),
                **live.privacy(engine.played),
                **({} if operations is None else {"flops": operations}),
                **({"recorded": recorded} if recorded else {}),
            }
        )
    return rows


def _measured(experiment, scores, i):
    """The numbers of an evaluation of seed i, with the accuracy by capacity and by net."""
    simulation = experiment.simulation
    measured = evaluate.summarize(scores, experiment.dataset.domains, simulation.plan.metrics)
    traits, accuracy = simulation.seeds[i].federation.traits, measured.get("accuracy")
    capacities = sorted(np.unique(traits.get("capacity", ())).tolist(), reverse=True)
    levels = {level: f"{level:g}" for level in capacities}
    nets = dict(enumerate(unlike_models.names(experiment.config.model)))
    kinds = None if (kind := traits.get("kind")) is None else kind.number
    groups = {
        "levels": evaluate.by_group(accuracy, traits.get("capacity"), levels),
        "kinds": evaluate.by_group(accuracy, kinds, nets),
    }
    return measured | {form: means for form, means in groups.items() if means}


def _check_cohorts(experiment, engine):
    """Raises BadInput if a user's sampling has returned invalid clients or shares."""
    misdrawn = engine.progress().counts.get("misdrawn")
    if misdrawn is None or (misdrawn < 0).all():
        return
    i, number = int(np.argmax(misdrawn >= 0)), len(experiment.simulation.seeds[0].training.train)
    raise BadInput(
        f"{transforming.sampling_name(experiment.config)} returned in round {misdrawn[i] + 1} (seed"
        f" {experiment.simulation.seed_numbers[i]}) a client that does not exist, or shares that"
        f" are below 0 or do not sum to 1; the clients are 0 .. {number - 1}"
    )


def _check_finite(live):
    diverged = live.engine.progress().diverged
    if (diverged < 0).all():
        return
    i = int(np.argmax(diverged >= 0))
    where = {"round": int(diverged[i]) + 1, "seed": live.experiment.simulation.seed_numbers[i]}
    if live.rows and len(live.parts) == 1:
        _finish(live, {"diverged": where})
    raise Diverged(
        f"{live.experiment.config.method.name} diverged in round {where['round']} (seed"
        f" {where['seed']}): a loss or a weight is not finite; try a smaller config.local.lr"
    )


def _summary(engine, experiment, rows):
    seeds = experiment.simulation.seed_numbers
    played, seconds, (examples, steps, lane_steps) = engine.session
    newest = [row for row in rows if row["round"] == rows[-1]["round"]]
    return {
        "method": experiment.config.method.name,
        "seeds": seeds,
        "rounds": engine.played,
        **metric_rows.summarize(rows, seeds),
        "lower_is_better": _lower_is_better(experiment.simulation.plan),
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
        **tasks.in_summary(experiment.simulation, engine.played),
        "data": _data(experiment),
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "versions": _versions(),
    }


def _lower_is_better(plan):
    """The names of the metrics of which a low value is good."""
    return [metric.name for metric in evaluate.all_metrics(plan) if metric.lower_is_better]


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
