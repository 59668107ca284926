"""The folder of a sweep: sweep.json, and in a folder for each cell how its run has ended."""

import contextlib
import re
from pathlib import Path
from typing import NamedTuple

from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.running import cloud, files, growth, metrics
from fedjax_lab.running.sweep_plan import Cell, Shared, make_cell

DIVERGED = 3  # the exit code of main
TAIL = 20  # lines of what a failed cell said


class Outcome(NamedTuple):
    """How a cell ended: the exit code of main, and what was said if that is not 0."""

    code: int
    said: str = ""


def check_folder(shared: Shared, cells: dict[str, Cell], out: Path) -> dict:
    """The cells that `out` has planned already, as its sweep.json holds them.

    BadInput where the folder holds something else, or a cell that by today's config file,
    overrides and seeds would be another run.
    """
    path, planned = out / "sweep.json", {}
    # Listed once: commands that share a sweep write sweep.json, and then their cells.
    names = {p.name for p in out.iterdir() if p.name[0] != "."} if out.is_dir() else set()
    if path.name in names:
        planned = files.read_plan(path)
    elif not all(name.startswith(path.name) for name in names) or out.is_file():
        raise BadInput(f"{out} holds something else than a sweep; name another folder with --out")
    for name, old in planned.items():
        try:
            today = make_cell(shared, old["method"], old["grid"])
        except BadInput as error:
            raise BadInput(f"cell {quoted(name)} of {path}: {error}") from error
        today = cells.get(name, today._replace(seeds=old.get("seeds", today.seeds)))
        grows = name in cells or "tuned" in old or "seeds" in old  # others keep seeds and rounds
        _check_planned(out / name, old["config"], today.saved, grows)
    for name, cell in cells.items():
        check_cell(cell, out / name)
    return planned


def _check_planned(folder, saved, today, grows):
    """BadInput where a cell was planned as another run; one that grows may get seeds and rounds."""
    if not grows:
        rounds = [{"run": {"rounds": each["run"].get("rounds")}} for each in (saved, today)]
        metrics.check_same(folder, *rounds)
    elif set(saved.get("seeds", ())) <= set(today["seeds"]):
        saved = {**saved, "seeds": today["seeds"]}
    growth.check_same(folder, saved, today)


def check_cell(cell: Cell, folder: Path) -> None:
    """BadInput where the cell's folder holds another run, or cannot hold its files.

    A run that is damaged is let through: the cell alone will fail, and say why.
    """
    if (folder / "error.txt").is_dir():
        raise BadInput(f"{folder / 'error.txt'} is a folder; remove it")
    with contextlib.suppress(files.Damaged):
        if (folder / "config.json").exists():
            growth.check_config(folder, grown(cell, folder).saved)


def grown(cell: Cell, folder: Path) -> Cell:
    """The cell with all seeds that its folder holds or has begun. Raises Damaged."""
    begun = list(cell.seeds)
    while there := growth.seeds(folder):
        begun += there
        folder = folder / growth.ADDED
    return cell._replace(seeds=list(dict.fromkeys(begun)))


def write_plan(planned: dict, cells: dict[str, Cell], out: Path) -> None:
    """sweep.json: the cells that were planned and the new ones, with their whole configs."""
    metrics.make_folder(out)
    new = {
        name: {"method": cell.method, "grid": cell.grid, "config": cell.saved, **cell.note}
        for name, cell in cells.items()
    }
    merged = {name: {**planned.get(name, {}), **entry} for name, entry in new.items()}
    metrics.write_json(out / "sweep.json", {"cells": planned | merged})
    cloud.publish(out)


def ended(folder: Path) -> Outcome | None:
    """How a cell has ended that is not run again; None for one that is to be run.

    One whose config.json or summary.json is damaged has not ended: its run says what is wrong.
    """
    try:
        files.read_config(folder / "config.json")
        summary = files.read_json(folder / "summary.json", files.FINISHED)
    except files.Damaged:
        return None
    if summary is not None:
        return Outcome(DIVERGED if "diverged" in summary else 0)
    failed = failure(folder)
    return failed if failed and failed.code == DIVERGED else None


def done(cell: Cell, folder: Path) -> Outcome | None:
    """How a cell has ended; None where it has not, or has more seeds or rounds than were run."""
    outcome = ended(folder)
    if outcome is None or outcome.code:
        return outcome
    seeds = files.read_json(folder / "summary.json", files.FINISHED)["seeds"]
    saved = files.read_config(folder / "config.json") or cell.saved
    if set(cell.seeds) <= set(seeds) and saved["run"].get("rounds") == cell.config.run.rounds:
        return outcome
    failed = failure(folder)
    return failed if failed and failed.code == DIVERGED else None


def failure(folder: Path) -> Outcome | None:
    """What error.txt records; None where it records nothing that can be read."""
    try:
        text = files.read_text(folder / "error.txt") or ""
    except files.Damaged:
        return None
    match = re.match(r"exit code (-?\d{1,9})\n", text)
    return Outcome(int(match[1]), text[match.end() :].strip()) if match else None


def record(outcome: Outcome, folder: Path) -> None:
    """Writes error.txt, unless all went well."""
    if outcome.code:
        metrics.make_folder(folder)
        text = f"exit code {outcome.code}\n{outcome.said}\n"
        metrics.write_text(folder / "error.txt", text)
        cloud.publish(folder)


def tail(text: str) -> str:
    """The last lines of what a failed cell said, without what JAX appends to each error."""
    said = text.partition("\n--------------------\nFor simplicity, JAX has removed")[0]
    return "\n".join(said.strip().splitlines()[-TAIL:])


def make_ready(folder: Path) -> Path:
    """The folder of a cell that is run now, without what an earlier try said."""
    (folder / "error.txt").unlink(missing_ok=True)
    cloud.publish(folder)
    return folder


def shown(folder: Path) -> str:
    """The accuracy after the last round, in percent; or why there is none."""
    outcome = ended(folder) or failure(folder)
    if outcome is None:
        return "not finished"
    if outcome.code == DIVERGED:
        return "diverged"
    if outcome.code:
        return f"failed: {(outcome.said or 'exit code ' + str(outcome.code)).splitlines()[-1]}"
    last = files.read_json(folder / "summary.json", files.FINISHED)["last"]
    mean, std = (metrics.headline(last.get(of, {})) for of in ("mean", "std"))
    if mean is None:
        return "done"
    return f"{mean:.2f}" + (f" +- {std:.2f}" if std is not None else "")
