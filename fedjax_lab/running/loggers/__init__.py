"""Loggers: services and user-defined functions that receive the evaluations of a run.

A logger consists of three functions. The first one starts it and returns the others in a `Logger`:

    def to_a_file(facts):                      # once, when the run starts or is resumed
        file = (facts.folder / "accuracy.txt").open("w")

        def log(rows):                         # after each evaluation: one row for each seed
            for row in rows:
                print(row["round"], row["seed"], row["accuracy"]["mean"], file=file)

        def end(summary):                      # the content of summary.json; None: not finished
            file.close()

        return Logger(log, end)

If this is in own.py, use it with `--log=own.py:to_a_file` or `fedjax_lab.run(config,
log=to_a_file)`. The built-in loggers are `wandb`, `mlflow` and `tensorboard`; they read the
environment variables of their services (WANDB_PROJECT, MLFLOW_TRACKING_URI, ...). Each logger has
its own thread, so that a run never waits for a network. An exception in a logger becomes a warning;
the evaluation is logged again after the next one, or when the run is resumed.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_lab.errors import BadInput, nearest, quoted
from fedjax_lab.experiment import references
from fedjax_lab.running.storage import metric_rows

BUILT_IN = {"wandb": "wandb", "mlflow": "mlflow", "tensorboard": "tensorboardX"}  # their packages


class Facts(NamedTuple):
    """The facts about a run that a logger receives when the run starts or is resumed."""

    name: str  # the name of the run's folder, or else of its method
    group: str | None  # the name of the sweep; None: the run belongs to no sweep
    folder: Path | None  # the folder of the run
    config: dict  # the content of config.json
    id: str | None = None  # the id of the run's earlier `Logger`; None: the run is new
    round: int = 0  # the round of the last evaluation that was logged


class Logger(NamedTuple):
    """The result of a logger's first function. Any object with the same attributes works, too."""

    log: Callable[[list[dict]], Any]  # takes one evaluation: a row for each seed
    end: Callable[[dict | None], Any] = lambda summary: None
    id: str | None = None  # identifies the run in the service when it is resumed
    round: int = 0  # the service already has the evaluations up to this round


Begin = Callable[[Facts], Any]  # -> Logger
Chosen = str | Begin | Iterable[str | Begin] | Mapping[str, Begin]


def find(log: Chosen) -> dict[str, Begin]:
    """The functions that start the chosen loggers, by name.

    Args:
      log: names and references, separated by commas in one text; functions; several of these; or an
        earlier result of this function.

    Raises:
      BadInput: there is no such logger, or its package is not installed.
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
        raise BadInput(f"--log={logger} must be a function, not of type {type(function).__name__}")
    return logger, function


def scalars(rows: list[dict]) -> dict[str, float]:
    """{tag: value} of an evaluation: means over seeds, and for several seeds each seed's values.

    rows: one row for each seed.
    """
    tagged = {row["seed"]: metric_rows.tagged(row) for row in rows}
    shared = [tag for tag in next(iter(tagged.values())) if all(tag in a for a in tagged.values())]
    means = {tag: sum(each[tag] for each in tagged.values()) / len(tagged) for tag in shared}
    means["seconds"] = rows[0]["seconds"]
    if len(rows) == 1:
        return means
    of_seeds = {f"seed-{s}/{tag}": value for s, a in tagged.items() for tag, value in a.items()}
    return means | of_seeds


def final(summary: dict) -> dict[str, float]:
    """{WAY/tag: value} of a summary.json: means over seeds for each way of choosing a round."""
    ways = [way for way, chosen in summary.items() if isinstance(chosen, dict) and "mean" in chosen]
    each = {way: metric_rows.tagged(summary[way]["mean"]) for way in ways}
    return {f"{way}/{tag}": value for way, tags in each.items() for tag, value in tags.items()}
