"""The folder of a sweep: sweep.json, and one subfolder for each cell with its run."""

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.errors import BadInput, printable, quoted
from fedjax_lab.running import growth, siblings
from fedjax_lab.running.storage import cloud, files, metric_rows
from fedjax_lab.simulation.units import HEADLINE_METRICS, in_words, is_percent, metric_of
from fedjax_lab.sweeping.sweep_plan import Cell, Shared, make_cell

DIVERGED = 3  # the exit code of `main` for a run that diverged
TAIL = 20  # the last lines of a failed cell's stderr that are kept


class Outcome(NamedTuple):
    """The end of a cell: the exit code of `main`, and its error output if the code is not 0."""

    code: int
    said: str = ""


def check_folder(shared: Shared, cells: dict[str, Cell], out: Path) -> dict:
    """Checks the folder of a sweep; returns the cells that its sweep.json has already planned.

    Args:
      shared: the settings that all cells have in common.
      cells: the cells of this command, by name.
      out: the folder of the sweep.

    Raises:
      BadInput: the folder holds something other than a sweep, or a cell whose run would differ with
        today's config file, overrides and seeds.
    """
    path, planned = out / "sweep.json", {}
    # Listed only once: commands that share a sweep write sweep.json first, and then their cells.
    names = {p.name for p in out.iterdir() if p.name[0] != "."} if out.is_dir() else set()
    if path.name in names:
        planned = files.read_plan(path)
    elif not all(name.startswith(path.name) for name in names) or out.is_file():
        raise BadInput(f"{out} holds something other than a sweep; name another folder with --out")
    for name, old in planned.items():
        try:
            today = make_cell(shared, old["method"], old["grid"])
        except BadInput as error:
            raise BadInput(f"cell {quoted(name)} of {path}: {error}") from error
        extended = any(other.startswith(name + siblings.ENDING) for other in planned)
        seeds = old["config"]["seeds"] if extended else today.seeds
        today = cells.get(name, today._replace(seeds=old.get("seeds", seeds)))
        grows = name in cells or "tuned" in old or "seeds" in old  # other cells keep their seeds
        _check_planned(out / name, old["config"], today.saved, grows)
    for name, cell in cells.items():
        check_cell(cell, out / name)
    return planned


def _check_planned(folder, saved, today, grows):
    """Raises BadInput if a cell was planned as a different run.

    grows: whether the cell may get more rounds, and more seeds if its run has not begun.
    """
    seeds = saved.get("seeds", [])
    if grows and isinstance(seeds, list) and all(seed in today["seeds"] for seed in seeds):
        saved = {**saved, "seeds": today["seeds"]}
    free = [key for key in growth.FREE if grows or key != "run.rounds"]
    growth.check_same(folder, saved, today, free)


def check_cell(cell: Cell, folder: Path) -> None:
    """Raises BadInput if the cell's folder holds another run or cannot hold its files.

    Damaged files are ignored here, because only this cell will fail, with an error message.
    """
    if (folder / "error.txt").is_dir():
        raise BadInput(f"{folder / 'error.txt'} is a folder; remove it")
    with contextlib.suppress(files.Damaged):
        if (folder / "config.json").exists():
            growth.check_config(folder, cell.saved)


def as_begun(cells: Iterable[Cell], out: Path) -> dict[str, Cell]:
    """The cells, by name, with the seeds of their folders; other seeds are cells beside them.

    Raises BadInput if a folder beside that of a cell has some of its seeds and others as well.
    """
    each = {}
    for cell in cells:
        runs = {"": cell.seeds}
        with contextlib.suppress(files.Damaged):  # then only this cell fails
            runs = siblings.plan(out / cell.name, cell.seeds)
        for ending, seeds in runs.items():
            note = {"seeds": seeds} if ending else cell.note
            beside = cell._replace(name=cell.name + ending, seeds=seeds, note=note)
            each[beside.name] = beside
    return each


def write_plan(planned: dict, cells: dict[str, Cell], out: Path) -> None:
    """Writes sweep.json with the cells already planned and the new ones, and their full configs."""
    metric_rows.make_folder(out)
    new = {
        name: {"method": cell.method, "grid": cell.grid, "config": cell.saved, **cell.note}
        for name, cell in cells.items()
    }
    merged = {name: {**planned.get(name, {}), **entry} for name, entry in new.items()}
    metric_rows.write_json(out / "sweep.json", {"cells": planned | merged})
    cloud.publish(out)


def last_ending(folder: Path, rounds: int | None = None) -> tuple[Outcome | None, dict]:
    """How a cell has ended last, or None, and its summary.json; {} if there is none.

    With `rounds`, a cell that has finished another number of rounds has not ended. Raises
    files.Damaged if its config.json or summary.json is damaged.
    """
    config = files.read_config(folder / "config.json")
    summary = files.read_json(folder / "summary.json", files.FINISHED) or {}
    if "diverged" in summary:
        return Outcome(DIVERGED), summary
    if summary and (not (rounds and config) or config["run"].get("rounds") == rounds):
        return Outcome(0), summary
    return failure(folder), summary


def ended(folder: Path, rounds: int | None = None) -> Outcome | None:
    """How a cell has ended, if it has finished or diverged; None if it must be run.

    A cell with a damaged file must be run, and reports the damage.
    """
    with contextlib.suppress(files.Damaged):
        outcome, _ = last_ending(folder, rounds)
        return outcome if outcome and outcome.code in (0, DIVERGED) else None
    return None


def done(cell: Cell, folder: Path) -> Outcome | None:
    """How a cell has ended; None if it has not, or if rounds of the cell are missing."""
    return ended(folder, cell.config.run.rounds)


def failure(folder: Path) -> Outcome | None:
    """The outcome recorded in error.txt; None if the file does not exist or is invalid."""
    try:
        text = files.read_text(folder / "error.txt") or ""
    except files.Damaged:
        return None
    match = re.match(r"exit code (-?\d{1,9})\n", text)
    return Outcome(int(match[1]), text[match.end() :].strip()) if match else None


def record(outcome: Outcome, folder: Path) -> None:
    """Writes the outcome of a failed or diverged cell to error.txt."""
    if outcome.code:
        metric_rows.make_folder(folder)
        text = f"exit code {outcome.code}\n{outcome.said}\n"
        metric_rows.write_text(folder / "error.txt", text)
        cloud.publish(folder)


def tail(text: str) -> str:
    """The last lines of a failed cell's stderr, without the note that JAX appends to errors."""
    said = text.partition("\n--------------------\nFor simplicity, JAX has removed")[0]
    return "\n".join(said.strip().splitlines()[-TAIL:])


def make_ready(folder: Path) -> Path:
    """Removes the error.txt of an earlier attempt from the folder of a cell; returns the folder."""
    (folder / "error.txt").unlink(missing_ok=True)
    cloud.publish(folder)
    return folder


def shown(*folders: Path) -> str:
    """The headline measure of runs after the last round, or the reason why there is none."""
    rows, reason = _last_rows(folders)
    return reason or _mean_std(rows, HEADLINE_METRICS) or "done"


def shown_metrics(folders: Iterable[Path], metrics: Iterable[str]) -> list[str]:
    """The headline measure of each metric, as in `shown`; an empty text if there is none."""
    rows, _ = _last_rows(folders)
    return [_mean_std(rows, [metric]) for metric in metrics]


def _last_rows(folders):
    """The evaluations of all seeds after the last round, and the reason why there are none."""
    rows: list[dict] = []
    for folder in folders:
        try:
            outcome, summary = last_ending(folder)
        except files.Damaged:
            outcome, summary = failure(folder), {}
        if outcome is None or outcome.code:
            return [], _reason(outcome)
        rows += summary["last"]["per_seed"].values()
    return rows, ""


def _mean_std(rows, metrics):
    """The mean and standard deviation of the first of the metrics that a row has."""
    measured = [(row, metric_rows.headline_measure(row, metrics)) for row in rows]
    values = [metric_rows.value_of(row, measure) for row, measure in measured if measure]
    if not values:
        return ""
    form = ".2f" if all(is_percent(measure) for _, measure in measured if measure) else ".4f"
    std = f" +- {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{std}"


def heading(folders: Iterable[Path]) -> str:
    """The metrics of the numbers that `shown` gives for these runs; by default the accuracy."""
    words: dict[str, None] = {}
    for folder in folders:
        with contextlib.suppress(files.Damaged):
            _, summary = last_ending(folder)
            rows = summary.get("last", {}).get("per_seed", {}).values()
            measured = map(metric_rows.headline_measure, rows)
            words |= dict.fromkeys(in_words(metric_of(measure)) for measure in measured if measure)
    return " or ".join(words) or in_words("accuracy")


def _reason(outcome):
    """Why a cell that has not finished has no accuracy."""
    if outcome is None:
        return "not finished"
    if outcome.code == DIVERGED:
        return "diverged"
    said = outcome.said or f"exit code {outcome.code}"
    return f"failed: {printable(said.splitlines()[-1])}"
