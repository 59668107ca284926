"""Adds seeds to a run: trains only the new seeds, in a subfolder, and then merges both runs.

Afterward the folder is the same as if all seeds had been trained together, so that it can be
resumed with more rounds or more seeds. Until then it holds the finished run of its earlier seeds.
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
    """A finished run of some of the seeds, read from its folder."""

    path: Path
    workdir: Workdir
    engine: Engine
    rows: list[dict]
    summary: dict


def make_folder(folder: Path) -> Path:
    """The subfolder in which the new seeds are trained, prepared for the same evaluations.

    The subfolder is only created if the run's evaluations differ from those of its config.json.
    """
    inner, evaluated = folder / growth.ADDED, growth.read_evaluated(folder)
    if evaluated.until:
        metrics.make_folder(inner)
        growth.write_evaluated(inner, evaluated)
    return inner


def check_first(folder: Path, played: int, rounds: int) -> None:
    """Raises BadInput if the folder's run ended early, because all seeds must end together."""
    if played < rounds:
        raise BadInput(
            f"{folder} ended early, after {played} of {rounds} rounds, and new seeds could end at"
            f" another round; first finish it with --resume --config.run.rounds={played} and"
            " without the rule that ended it"
        )


def check_others(folder: Path, seeds: list[int], played: int, rounds: int) -> None:
    """Raises BadInput if the run of the new seeds ended before its last round."""
    if played < rounds:
        raise BadInput(
            f"the new seeds of {folder} ({','.join(map(str, seeds))}) ended after {played} of"
            f" {rounds} rounds, but the earlier seeds did not; finish them with --resume, without"
            " the rule that ended them"
        )


def merge(experiment: Experiment, folder: Path) -> None:
    """Merges the finished run of a folder with that of the new seeds in its subfolder.

    experiment: the experiment with all seeds, those of the folder first.
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
    """The rows of all seeds; `seconds` is the time that all seeds together took until then."""
    seconds: Counter = Counter()
    for part in parts:
        seconds.update({row["round"]: row["seconds"] for row in part.rows})
    rows = [row | {"seconds": seconds[row["round"]]} for part in parts for row in part.rows]
    return sorted(rows, key=lambda row: (row["round"], seeds.index(row["seed"])))


def _read(experiment, path):
    """Reads a finished run of the experiment from its folder."""
    engine, workdir = Engine(experiment.simulation, folder=path), Workdir(path, experiment)
    return Part(path, workdir, engine, workdir.look(engine), workdir.read_summary())


def _join(experiment, parts, merged):
    """The engine with all seeds after the last round. Saves the facts of its stages."""
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
    """The summary of all seeds, as a joint run would have it, computed from the two runs.

    Times and bytes are sums, rates are means weighted by seconds, and the device is that of the
    last run.
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
    """The mean of a rate, weighted by seconds of training, over the runs that have it."""
    pairs = [(each[key], each["seconds"]) for each in summaries if each[key] is not None]
    total = sum(seconds for _, seconds in pairs)
    return sum(rate * seconds for rate, seconds in pairs) / total if total else None
