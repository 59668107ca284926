"""Loggers: services and functions of one's own that follow a run while it goes on.

A logger is three functions. The first one begins, and returns the other two in a `Logger`:

    def to_a_file(facts):                      # once, when the run begins or goes on
        file = (facts.folder / "accuracy.txt").open("w")

        def log(rows):                         # after each evaluation: a row of each seed
            for row in rows:
                print(row["round"], row["seed"], row["accuracy"]["mean"], file=file)

        def end(summary):                      # the content of summary.json; None: it was cut short
            file.close()

        return Logger(log, end)

With that in own.py, `--log=own.py:to_a_file` or `fedjax_lab.run(config, log=to_a_file)` uses it.
Built in are `wandb`, `mlflow` and `tensorboard`; they read the environment variables of their
services (WANDB_PROJECT, MLFLOW_TRACKING_URI, ...). All three functions are called in a thread of
their own, so that a run never waits for a network, and an exception in them is a warning: what
could not be logged is tried again after the next evaluation, and when the run is resumed.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_lab import references
from fedjax_lab.errors import BadInput, nearest, quoted
from fedjax_lab.running import metrics

BUILT_IN = {"wandb": "wandb", "mlflow": "mlflow", "tensorboard": "tensorboardX"}  # their packages


class Facts(NamedTuple):
    """What a logger is told of a run when that begins or goes on."""

    name: str  # of the run's folder, or of its method
    group: str | None  # the name of the sweep that the run is a cell of
    folder: Path | None  # of the run
    config: dict  # the content of config.json
    id: str | None = None  # of the `Logger` when the run began
    round: int = 0  # the last one whose evaluation was logged


class Logger(NamedTuple):
    """What a logger's first function returns. An object with the same attributes will do."""

    log: Callable[[list[dict]], Any]  # takes the row of each seed of one evaluation
    end: Callable[[dict | None], Any] = lambda summary: None
    id: str | None = None  # by which the service finds the run again when it goes on
    round: int = 0  # evaluations until then are not logged again: the service has them


Begin = Callable[[Facts], Any]  # -> Logger
Chosen = str | Begin | Iterable[str | Begin] | Mapping[str, Begin]


def find(log: Chosen) -> dict[str, Begin]:
    """By name the functions that begin the chosen loggers.

    log: names and references, in one text with commas between them; functions; or what this has
      returned.

    Raises BadInput: there is no such logger, or its package is not installed.
    """
    if isinstance(log, Mapping):
        return dict(log)
    if isinstance(log, str):
        log = filter(None, log.split(","))
    each: Any = log if isinstance(log, Iterable) and not callable(log) else [log]
    return dict(map(_find, each))


def _find(logger):
    if not isinstance(logger, str):
        if not callable(logger):
            raise BadInput(f"a logger must be a name or a function, got {quoted(logger)}")
        return references.text_of(logger), logger
    if logger in BUILT_IN:
        if importlib.util.find_spec(BUILT_IN[logger]) is None:
            raise BadInput(f"--log={logger} needs a package: pip install 'fedjax_lab[{logger}]'")
        return logger, importlib.import_module(f"{__name__}.to_{logger}").begin
    if not references.is_reference(logger):
        raise BadInput(f"no logger {quoted(logger)}; {nearest(logger, BUILT_IN)}")
    function = references.find(logger)
    if not callable(function):
        raise BadInput(f"--log={logger} is no function but of type {type(function).__name__}")
    return logger, function


def scalars(rows: list[dict]) -> dict[str, float]:
    """{tag: value} of an evaluation: means over the seeds, and of several each one's own values."""
    tagged = {row["seed"]: metrics.tagged(row) for row in rows}
    shared = [tag for tag in next(iter(tagged.values())) if all(tag in a for a in tagged.values())]
    means = {tag: sum(each[tag] for each in tagged.values()) / len(tagged) for tag in shared}
    means["seconds"] = rows[0]["seconds"]
    if len(rows) == 1:
        return means
    of_seeds = {f"seed-{s}/{tag}": value for s, a in tagged.items() for tag, value in a.items()}
    return means | of_seeds


def final(summary: dict) -> dict[str, float]:
    """{WAY/tag: value} of a summary.json: means over the seeds by the ways to choose a round."""
    ways = [way for way, chosen in summary.items() if isinstance(chosen, dict) and "mean" in chosen]
    each = {way: metrics.tagged(summary[way]["mean"]) for way in ways}
    return {f"{way}/{tag}": value for way, tags in each.items() for tag, value in tags.items()}
