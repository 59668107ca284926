"""Adds seeds to the cells of a sweep until their differences to a baseline are precise enough.

A cell's difference is its accuracy minus the baseline's after the last round, averaged over their
common seeds. A cell is "clear" once the interval of `confidence` around this mean is short enough.
Until then, the cell and its baseline get more seeds, each time as many as they started with, in the
same way as a run that is resumed with more --seeds.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.errors import BadInput, cut, nearest
from fedjax_lab.running import files, metrics
from fedjax_lab.running.confidence import half_width
from fedjax_lab.running.sweep_folder import done, ended, grown
from fedjax_lab.running.sweep_plan import Cell

MOST_SEEDS = 20  # the default of --max_seeds, the most seeds of a cell


class Goal(NamedTuple):
    """The goal that --until, --baseline and --max_seeds define."""

    half_width: float  # of the interval, in percentage points
    baseline: str  # the name of a method or a cell
    max_seeds: int  # the most seeds of a cell

    def __str__(self) -> str:
        return f"ci:{self.half_width:g}"


class Pair(NamedTuple):
    """A cell and the baseline that it is compared with."""

    cell: Cell
    baseline: Cell


class Difference(NamedTuple):
    """The difference between the two cells of a pair, over the seeds finished so far."""

    seeds: int  # number of seeds that both cells have finished
    mean: float | None  # mean difference in percentage points; None without common seeds
    half_width: float  # of the interval around the mean; inf for too few seeds
    state: str  # "clear" or "open"; "diverged" or "unfinished" if one of the cells is


def parse(until: str, baseline: str, max_seeds: int) -> Goal:
    """Parses --until=ci:POINTS, --baseline and --max_seeds."""
    match = re.fullmatch(r"ci:(\d{1,6}(?:\.\d{0,6})?|\.\d{1,6})", until)
    if match is None or not 0 < float(match[1]) <= 100:
        raise BadInput(
            f"--until={cut(until, 80)} is not ci:POINTS with a half width above 0 and at most 100"
            " percentage points of accuracy, such as --until=ci:0.5"
        )
    return Goal(float(match[1]), baseline, max_seeds)


# Pairs of cells.


def pairs(cells: Sequence[Cell], goal: Goal) -> list[Pair]:
    """Each cell of a plan with its baseline, except for the baselines themselves.

    If --baseline names a method, the baseline of a cell is the method's cell at the same point of
    the grid, ignoring keys of `method`. If it names a cell, the baseline is that cell, or for other
    data and partitions the cell with the same settings.

    Raises BadInput if a cell has no baseline or several possible ones.
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
        raise BadInput(f"--baseline={cut(wanted, 80)} names no cell; {nearest(wanted, names)}")
    out = []
    for cell in cells:
        beside = [each for each in baselines if _point(each, shared) == _point(cell, shared)]
        if len(beside) != 1:
            several = " or ".join(each.name for each in beside)
            reason = f"could be {several}" if beside else "matches no cell"
            flag = f"--baseline={cut(wanted, 80)}"
            raise BadInput(
                f"{flag} {reason} for comparison with {cell.name}; name a cell, or change --methods"
            )
        out.append(Pair(cell, beside[0]))
    compared = [pair for pair in out if pair.cell.name != pair.baseline.name]
    if not compared:
        raise BadInput("--until needs another cell besides the baseline; name more --methods")
    return compared


def _check_seeds(seeds, max_seeds):
    if max_seeds <= len(seeds):
        raise BadInput(
            f"--max_seeds={max_seeds} must be larger than {len(seeds)}, the number of seeds that"
            " every cell starts with"
        )


def _like(cell, other):
    """Whether two cells differ only in data and partition."""

    def is_setting(key):
        return not _is_of_problem(key)

    return cell.method == other.method and _point(cell, is_setting) == _point(other, is_setting)


def _point(cell, chosen):
    """The grid keys for which `chosen` is true, with the cell's values."""
    return {key: text for key, text in cell.grid.items() if chosen(key)}


def _is_of_problem(key):
    return key.startswith(("data.", "partition."))


def _is_shared(key):
    return not key.startswith("method.")


# More seeds.


def of_all(cell: Cell, out: Path) -> Cell:
    """The cell with all seeds that its folder has; unchanged if the folder cannot be read."""
    try:
        return grown(cell, out / cell.name)
    except files.Damaged:
        return cell


def accuracies(cell: Cell, out: Path) -> dict[int, float]:
    """The accuracy after the last round, by seed, for the seeds that a cell has finished."""
    outcome = ended(out / cell.name)
    if outcome is None or outcome.code:
        return {}
    summary = files.read_json(out / cell.name / "summary.json", files.FINISHED)
    each = {int(seed): metrics.headline(row) for seed, row in summary["last"]["per_seed"].items()}
    return {seed: value for seed, value in each.items() if value is not None}


def compare(pair: Pair, goal: Goal, out: Path) -> Difference:
    """The difference between the cells of a pair, over the seeds that both have finished."""
    values, theirs = (accuracies(cell, out) for cell in pair)
    common = sorted(values.keys() & theirs.keys())
    differences = [values[seed] - theirs[seed] for seed in common]
    mean, half = float(np.mean(differences)) if differences else None, half_width(differences)
    ends = [done(of_all(cell, out), out / cell.name) for cell in pair]
    finished = [outcome for outcome in ends if outcome is not None]
    if len(finished) < len(ends):
        state = "unfinished"
    elif any(outcome.code for outcome in finished):
        state = "diverged"
    else:
        state = "clear" if half <= goal.half_width else "open"
    return Difference(len(common), mean, half, state)


def next_runs(pairs: Sequence[Pair], goal: Goal, out: Path) -> list[Cell]:
    """The cells to run next, with all their seeds; empty if there is nothing to do.

    Cells that an earlier command has left unfinished come first, then baselines that lack seeds of
    the cells compared with them, then cells of open pairs with additional seeds.
    """
    states = {pair.cell.name: compare(pair, goal, out).state for pair in pairs}
    pairs = [pair for pair in pairs if states[pair.cell.name] != "diverged"]
    cells = {cell.name: of_all(cell, out) for pair in pairs for cell in pair}
    unfinished = [cell for cell in cells.values() if done(cell, out / cell.name) is None]
    more = {
        pair.cell.name: _following(cells[pair.cell.name], len(pair.cell.seeds), goal)
        for pair in pairs
        if states[pair.cell.name] == "open"
    }
    return unfinished or _longer(pairs, cells, {}) or _longer(pairs, cells, more)


def _following(cell, batch, goal):
    """The seeds to add to a cell next: `batch` seeds, or fewer to stay within the maximum."""
    count = min(batch, goal.max_seeds - len(cell.seeds))
    return list(range(max(cell.seeds) + 1, max(cell.seeds) + 1 + count))


def _longer(pairs, cells, more):
    """The cells to which `more` adds seeds, and the baselines that then lack some of these."""
    seeds = {name: [*cell.seeds, *more.get(name, ())] for name, cell in cells.items()}
    for pair in pairs:
        base = seeds[pair.baseline.name]
        base += [seed for seed in seeds[pair.cell.name] if seed not in base]
    return [
        cell._replace(seeds=seeds[name])
        for name, cell in cells.items()
        if len(seeds[name]) > len(cell.seeds)
    ]
