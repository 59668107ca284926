"""Reads and checks the files of a run that is resumed; changes none before all are checked."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedjax_lab.engine import processes
from fedjax_lab.engine.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.experiment import Experiment, check_noise, ends_with
from fedjax_lab.experiment.keys import DEFAULTS
from fedjax_lab.experiment.stages import ends
from fedjax_lab.experiment.variants import check_rates
from fedjax_lab.running import growth
from fedjax_lab.running.storage import files, fingerprint, metric_rows, stage_facts
from fedjax_lab.running.storage.checkpoint import Checkpoints


def check_data(path: Path, experiment: Experiment) -> dict[str, str]:
    """The fingerprint of the data. Raises BadInput if the folder holds a run on other data."""
    today, file = fingerprint.compute(experiment), path / "fingerprint.json"
    if not (path / "config.json").exists():
        return today
    if file.exists():
        fingerprint.check_same(files.read_json(file, {"*": files.TEXT}), today, path)
    elif (path / "checkpoints").exists():
        raise BadInput(
            f"{path} has no {file.name}: an older version wrote the run, or the file is lost; it"
            " cannot be determined whether the data are the same, so start a new run in another"
            " folder"
        )
    return today


def evaluations(path: Path, experiment: Experiment) -> list[int]:
    """The numbers of rounds with an evaluation, from 0, according to the folder's config."""
    run = processes.call_in_first(lambda: _run_section(path))
    every, ends = run["eval_every"], [*ends_with(experiment, run["rounds"]).values()]
    return processes.call_in_first(lambda: growth.evaluations(path, every, ends))


def _run_section(path):
    """The section `run` of the folder's config; keys that it lacks have their defaults."""
    return {**DEFAULTS["run"], **growth.read_config(path)["run"]}


def read(
    path: Path,
    experiment: Experiment,
    checkpoints: Checkpoints,
    engine: Engine,
    new: Callable[[], Engine],
    rounds: int | None = None,
) -> tuple[Engine, list[dict]]:
    """Restores a checkpoint; returns the engine and the metrics rows up to it. Changes no file.

    Args:
      path: the folder of the run.
      experiment: the experiment that continues.
      checkpoints: those in the folder.
      engine: a new engine, which has not played any round.
      new: makes another one, which replaces it if all checkpoints of a later stage are damaged.
      rounds: the number of rounds of the checkpoint; None: the newest intact one.

    Raises BadInput if a required file is damaged or lost, or the run cannot continue.
    """
    seeds, metrics = experiment.simulation.seed_numbers, path / "metrics.jsonl"
    expected = [(after, seed) for after in evaluations(path, experiment)[1:] for seed in seeds]

    def snapshot(saved):
        nonlocal engine
        _check_continues(path, experiment, saved)
        if saved:
            on_host = processes.call_in_first(lambda: checkpoints.has_stores(saved))
            _check_host(path, experiment, on_host)
        engine = _advanced(path, engine, new, saved)
        return engine.snapshot() if saved else None  # the first states may not be ready

    saved, restored = checkpoints.newest(snapshot, rounds)
    rows = processes.call_in_first(lambda: metric_rows.verified(metrics, expected, saved))
    if saved:
        engine.go_on(restored, saved)
        checkpoints.load(saved, engine.kept())
    return engine, rows


def _advanced(path, engine, new, saved):
    """An engine in the stage of the checkpoint after `saved` rounds."""
    if 0 < saved <= [0, *engine.ends][engine.stage_number]:  # all later ones are damaged
        engine = new()
    while saved > engine.ends[engine.stage_number]:
        stage = engine.simulation.stages[engine.stage_number + 1]
        engine.next_stage(stage_facts.read(path, stage, len(engine.lanes)))
    return engine


def _check_continues(path, experiment, saved):
    """Raises BadInput unless the experiment can go on from the checkpoint after `saved` rounds."""
    rounds = processes.call_in_first(lambda: _run_section(path)["rounds"])
    until_now, today = ends_with(experiment, rounds), ends(experiment.simulation.stages)
    growth.check_rounds(path, until_now, today, saved)
    old, new = (np.diff([0, *each.values()]).tolist() for each in (until_now, today))
    check_rates(experiment.config, old, new, saved)
    check_noise(experiment, sum(old), sum(new), saved)


def _check_host(path, experiment, saved_on_host):
    """Raises BadInput if the checkpoint and this run keep clients' state in different places.

    The place is either host memory (or disk) or the devices.
    """
    if saved_on_host != (experiment.simulation.host is not None):
        remedy = (
            "config.engine.state=host or disk"
            if saved_on_host
            else "config.engine.state=replicated or sharded, and config.engine.data not stream"
        )
        raise BadInput(
            f"{path} holds a run that keeps its clients' state on the"
            f" {'host' if saved_on_host else 'devices'}; resume it with {remedy}"
        )


def adopt(
    path: Path, experiment: Experiment, saved: int, made: list[int], today: list[int]
) -> None:
    """Writes the config of the resumed run if it differs from the saved config.

    Args:
      path: the folder of the run.
      experiment: the experiment that continues.
      saved: the number of rounds of the checkpoint from which it continues.
      made: the evaluations according to the saved config.
      today: the evaluations according to the experiment.
    """
    config = growth.saved_config(experiment.config, experiment.simulation.seed_numbers)
    before, total = growth.read_config(path), experiment.simulation.plan.rounds
    is_longer = before["run"]["rounds"] != config["run"]["rounds"]
    if not growth.differ(before, config) or (saved == total and not is_longer):
        return
    made, today = ([after for after in each if after <= saved] for each in (made, today))
    if made != today:
        growth.write_evaluated(path, saved, made[1:])
    (path / "summary.json").unlink(missing_ok=True)
    metric_rows.write_json(path / "config.json", config)
