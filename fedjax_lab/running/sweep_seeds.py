"""Seeds that a sweep adds until its differences are clear.

A cell's difference to the baseline is the mean over their common seeds of its accuracy minus the
baseline's, after the last round. A cell is clear once the interval of `confidence` around this mean
is short enough. Until then the cell and its baseline get more seeds, as many as they began with at
a time. More seeds of a cell are a run of the same config in the folder CELL+seeds=FIRST-LAST beside
the cell's own; reports make one row of them.
"""

import glob
import re
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.errors import BadInput, cut, nearest
from fedjax_lab.running import files, metrics
from fedjax_lab.running.confidence import half_width
from fedjax_lab.running.sweep_folder import ended
from fedjax_lab.running.sweep_plan import Cell

MOST_SEEDS = 20  # of a cell, unless --max_seeds says otherwise


class Goal(NamedTuple):
    """What --until, --baseline and --max_seeds ask for."""

    half_width: float  # in points
    baseline: str  # a method or a cell
    max_seeds: int

    def __str__(self) -> str:
        return f"ci:{self.half_width:g}"


class Pair(NamedTuple):
    """A cell, and the one that it is compared with."""

    cell: Cell
    baseline: Cell


class Difference(NamedTuple):
    """What is known about a pair."""

    seeds: int  # that both have finished
    mean: float | None  # of the differences in points; None without common seeds
    half_width: float  # of the interval around it; inf for too few seeds
    state: str  # "clear", "open", or "diverged" or "failed" of one of the two


def parse(until: str, baseline: str, max_seeds: int) -> Goal:
    """The goal of --until=ci:POINTS, --baseline and --max_seeds."""
    match = re.fullmatch(r"ci:(\d{1,6}(?:\.\d{0,6})?|\.\d{1,6})", until)
    if match is None or not 0 < float(match[1]) <= 100:
        raise BadInput(
            f"--until={cut(until, 80)} is not ci:POINTS with a half width above 0 and at most 100"
            " points of accuracy, such as --until=ci:0.5"
        )
    return Goal(float(match[1]), baseline, max_seeds)


# Who is compared with whom.


def pairs(cells: Sequence[Cell], goal: Goal) -> list[Pair]:
    """Each cell of a plan with its baseline, but for the baselines themselves.

    Where --baseline names a method, the baseline is its cell at the same point of the grid, keys of
    `method` left out. Where it names a cell, it is that one, and at other data and partitions the
    cell with its settings.

    Raises BadInput where a cell has no baseline, or could have several.
    """
    wanted = goal.baseline
    _check_seeds(cells[0].seeds, goal.max_seeds)
    named = [cell for cell in cells if cell.name == wanted]
    baselines = [cell for cell in cells if wanted in (cell.method, cell.config.method.name)]
    shared: Callable[[str], bool] = _is_shared
    if named:
        baselines = [cell for cell in cells if _like(cell, named[0])]
        shared = _is_of_problem
    if not baselines:
        names = {name for cell in cells for name in (cell.name, cell.config.method.name)}
        raise BadInput(f"--baseline={cut(wanted, 80)} is no cell; {nearest(wanted, names)}")
    out = []
    for cell in cells:
        beside = [each for each in baselines if _point(each, shared) == _point(cell, shared)]
        if len(beside) != 1:
            several = " or ".join(each.name for each in beside)
            reason = f"could be {several}" if beside else "has no cell"
            flag = f"--baseline={cut(wanted, 80)}"
            raise BadInput(f"{flag} {reason} beside {cell.name}; name a cell, or other --methods")
        out.append(Pair(cell, beside[0]))
    compared = [pair for pair in out if pair.cell.name != pair.baseline.name]
    if not compared:
        raise BadInput("--until needs a cell besides the baseline; name more --methods")
    return compared


def _check_seeds(seeds, max_seeds):
    if max_seeds <= len(seeds):
        raise BadInput(
            f"--max_seeds={max_seeds} adds nothing to the {len(seeds)} seeds that every cell"
            " begins with; name more"
        )


def _like(cell, other):
    """Whether two cells differ in data and partition alone."""

    def is_setting(key):
        return not _is_of_problem(key)

    return cell.method == other.method and _point(cell, is_setting) == _point(other, is_setting)


def _point(cell, chosen):
    """The chosen keys of the grid, with the values of a cell."""
    return {key: text for key, text in cell.grid.items() if chosen(key)}


def _is_of_problem(key):
    return key.startswith(("data.", "partition."))


def _is_shared(key):
    return not key.startswith("method.")


# More seeds.


def with_seeds(cell: Cell, seeds: Sequence[int]) -> Cell:
    """The run of more seeds of a cell."""
    return cell._replace(
        name=f"{cell.name}{files.MORE_SEEDS}{seeds[0]}-{seeds[-1]}", seeds=list(seeds)
    )


def more(cell: Cell, out: Path) -> list[Cell]:
    """The runs of more seeds of a cell that have begun, those with the smallest seeds first."""
    begun = []
    for folder in out.glob(glob.escape(cell.name + files.MORE_SEEDS) + "*"):
        ends = re.fullmatch(r"(\d{1,10})-(\d{1,10})", folder.name.rpartition(files.MORE_SEEDS)[2])
        if ends and (folder / "config.json").exists():
            begun.append(with_seeds(cell, range(int(ends[1]), int(ends[2]) + 1)))
    return sorted(begun, key=lambda each: each.seeds)


def of_cell(cell: Cell, out: Path) -> list[Cell]:
    """The runs of a cell: its own and those of more seeds."""
    return [cell, *more(cell, out)]


def accuracies(cell: Cell, out: Path) -> dict[int, float]:
    """The accuracy after the last round of each seed that a cell has finished."""
    values = {}
    for run in of_cell(cell, out):
        if (how := ended(out / run.name)) is None or how.code:
            continue
        summary = files.read_json(out / run.name / "summary.json", files.FINISHED)
        for seed, row in summary["last"]["per_seed"].items():
            if (value := metrics.headline(row)) is not None:
                values[int(seed)] = value
    return values


def compare(pair: Pair, goal: Goal, out: Path) -> Difference:
    """What the finished seeds say about a pair."""
    ours, theirs = (accuracies(cell, out) for cell in pair)
    common = sorted(ours.keys() & theirs.keys())
    values = [ours[seed] - theirs[seed] for seed in common]
    half = half_width(values)
    ends = [ended(out / run.name) for cell in pair for run in of_cell(cell, out)]
    if any(how is not None and how.code for how in ends):
        state = "diverged"
    elif None in ends:
        state = "failed"
    else:
        state = "clear" if half <= goal.half_width else "open"
    return Difference(len(common), float(np.mean(values)) if values else None, half, state)


def next_runs(pairs: Iterable[Pair], goal: Goal, out: Path, tried: Set[str]) -> list[Cell]:
    """What is run next, after everything before has ended; empty where there is nothing to do.

    First what an earlier command has begun, and what baselines lack; then more seeds for the pairs
    that are open. Pairs with a run that was tried in vain are left alone.
    """
    pairs = [pair for pair in pairs if not _failed(pair, out, tried)]
    begun = [run for pair in pairs for cell in pair for run in more(cell, out)]
    runs = [run for run in begun if ended(out / run.name) is None]
    runs = runs or _more_of_baselines(pairs, {}, out)
    if not runs:
        first = [pair for pair in pairs if compare(pair, goal, out).state == "open"]
        wanted = {pair.cell.name: _following(pair.cell, goal, out) for pair in first}
        runs = [with_seeds(pair.cell, seeds) for pair in first if (seeds := wanted[pair.cell.name])]
        runs += _more_of_baselines(first, wanted, out)
    return list({run.name: run for run in runs}.values())


def _failed(pair, out, tried):
    runs = [run for cell in pair for run in of_cell(cell, out)]
    return any(run.name in tried and ended(out / run.name) is None for run in runs)


def _following(cell, goal, out):
    """The seeds that a cell gets next, as many as it began with."""
    there = _seeds(cell, out)
    count = min(len(cell.seeds), goal.max_seeds - len(there))
    return list(range(max(there) + 1, max(there) + 1 + count))


def _more_of_baselines(pairs, wanted, out):
    """The runs of the seeds that cells have or are going to have, and their baselines have not."""
    lacking: dict[str, set[int]] = {}
    baselines = {pair.baseline.name: pair.baseline for pair in pairs}
    for pair in pairs:
        needed = _seeds(pair.cell, out) | set(wanted.get(pair.cell.name, ()))
        lacking.setdefault(pair.baseline.name, set()).update(needed)
    missing = {name: sorted(lacking[name] - _seeds(baselines[name], out)) for name in baselines}
    return [with_seeds(baselines[name], seeds) for name, seeds in missing.items() if seeds]


def _seeds(cell, out):
    return {seed for run in of_cell(cell, out) for seed in run.seeds}
