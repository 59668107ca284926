"""More seeds for a run: these alone are trained, beside it, and then both become one run.

The folder is afterward what all seeds at once would have left, so that it can be resumed, and have
more rounds or more seeds. Until then it is the finished run of its earlier seeds.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_lab import flops, processes
from fedjax_lab.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import Experiment, of_seeds
from fedjax_lab.running import growth, guaranteed, merging, metrics
from fedjax_lab.running.checkpoint import Checkpoints
from fedjax_lab.running.warm_start import warmed
from fedjax_lab.running.workdir import Workdir

SUMS = ("seconds", "evaluate_seconds", "compile_seconds", "bytes_up", "bytes_down")
RATES = ("rounds_per_second", "examples_per_second", "utilisation")


class Part(NamedTuple):
    """A finished run of some of the seeds, as its folder has it."""

    path: Path
    workdir: Workdir
    engine: Engine
    rows: list[dict]
    summary: dict


def make_folder(folder: Path) -> Path:
    """Where the other seeds of a folder's run are trained, with the evaluations of the first ones.

    Nothing is made where these are all as its config.json says.
    """
    inner, evaluated = folder / growth.ADDED, growth.read_evaluated(folder)
    if evaluated.until:
        metrics.make_folder(inner)
        growth.write_evaluated(inner, evaluated)
    return inner


def check_first(folder: Path, played: int, rounds: int) -> None:
    """BadInput where the folder's own run ended before its last round: all seeds end after one."""
    if played < rounds:
        raise BadInput(
            f"{folder} ended after {played} of {rounds} rounds, and seeds that come besides might"
            " end after others; make an end of it first, with --resume --config.run.rounds="
            f"{played} and without what ended it there"
        )


def check_others(folder: Path, seeds: list[int], played: int, rounds: int) -> None:
    """BadInput where the run of the seeds that come besides ended before its last round."""
    if played < rounds:
        raise BadInput(
            f"the new seeds of {folder} ({','.join(map(str, seeds))}) ended after {played} of"
            f" {rounds} rounds, and the earlier ones did not; go on with --resume, without what"
            " ended them there"
        )


def merge(experiment: Experiment, folder: Path) -> None:
    """Makes one finished run of the folder's and that of the other seeds inside of it.

    experiment: of all seeds, first those of the folder.
    """
    seeds = experiment.simulation.seeds
    old = processes.of_first(lambda: growth.seeds(folder) or [])
    new = [seed for seed in seeds if seed not in old]
    parts = [
        _read(warmed(of_seeds(experiment, some)), path)
        for some, path in ((old, folder), (new, folder / growth.ADDED))
    ]
    experiment = warmed(experiment)
    merged = Workdir(folder / merging.MERGED, experiment)
    try:
        processes.of_first(lambda: metrics.make_folder(folder / merging.MERGED))
        merged.open()
        rows = _join_rows(parts, seeds)
        merged.append(rows)
        merged.save(_join(experiment, parts, merged), force=True)
        merged.finish(functools.partial(_summary, parts), rows)
    finally:
        merged.close()
    processes.of_first(lambda: merging.replace(folder))


def _join_rows(parts, seeds):
    """The rows of all seeds. Each says the seconds that all of them took together until then."""
    seconds: Counter = Counter()
    for part in parts:
        seconds.update({row["round"]: row["seconds"] for row in part.rows})
    rows = [row | {"seconds": seconds[row["round"]]} for part in parts for row in part.rows]
    return sorted(rows, key=lambda row: (row["round"], seeds.index(row["seed"])))


def _read(experiment, path):
    """A finished run of the experiment."""
    engine, workdir = Engine(experiment.simulation, folder=path), Workdir(path, experiment)
    return Part(path, workdir, engine, workdir.look(engine), workdir.read_summary())


def _join(experiment, parts, merged):
    """The engine of all seeds after the last round. Keeps the facts of its stages."""
    engine, engines = Engine(experiment.simulation, folder=merged.path), [p.engine for p in parts]
    merged.keep_facts(engine.first_facts, engine)
    for stage in experiment.simulation.stages[1:]:
        facts = [part.workdir.read_facts(stage, len(part.engine.lanes)) for part in parts]
        merged.keep_facts(engine.next_stage(engine.join_facts(engines, facts)), engine)
    engine.join(engines)
    stores = engine.kept()
    for part in parts if stores else ():
        checkpoints = Checkpoints(part.path / "checkpoints", read_only=True)
        of_part, stores = stores[: len(part.engine.lanes)], stores[len(part.engine.lanes) :]
        checkpoints.load(engine.played, of_part)
        checkpoints.close()
    return engine


def _summary(parts, experiment, rows):
    """What all seeds at once would have in their summary, as far as two runs of them can tell.

    Times and bytes are sums, rates are means over the seconds; the machine is that of the last one.
    """
    last, seeds = parts[-1].summary, experiment.simulation.seeds
    sums = {key: sum(part.summary[key] for part in parts) for key in SUMS}
    rates = {key: _mean_rate([part.summary for part in parts], key) for key in RATES}
    peak = max(part.summary["peak_memory_bytes"] for part in parts)
    pace = metrics.pace(rows, seeds)
    pace["flops_utilization"] = flops.utilization(pace["flops_per_second"])
    privacy = guaranteed.in_summary(experiment, rows, last["rounds"])
    numbers = {"seeds": seeds, **metrics.summarize(rows, seeds), **sums, **rates, **pace, **privacy}
    return {**last, **numbers, "peak_memory_bytes": peak}


def _mean_rate(summaries: Sequence[dict], key: str) -> float | None:
    """The mean over the seconds of training; of a run that knows its rate."""
    pairs = [(each[key], each["seconds"]) for each in summaries if each[key] is not None]
    total = sum(seconds for _, seconds in pairs)
    return sum(rate * seconds for rate, seconds in pairs) / total if total else None
