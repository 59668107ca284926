"""Seeds that a sweep adds until its differences are clear.

A cell's difference to the baseline is the mean over their common seeds of its accuracy minus the
baseline's, after the last round. A cell is clear once the interval of `confidence` around this mean
is short enough. Until then the cell and its baseline get more seeds, as many as they began with at
a time, by the same way as a run that is resumed with more --seeds.
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
    state: str  # "clear" or "open"; "diverged" or "unfinished" where one of the two is


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


def of_all(cell: Cell, out: Path) -> Cell:
    """The cell with all seeds that its folder has; as it is where nobody can read that."""
    try:
        return grown(cell, out / cell.name)
    except files.Damaged:
        return cell


def accuracies(cell: Cell, out: Path) -> dict[int, float]:
    """The accuracy after the last round of each seed that a cell has finished."""
    outcome = ended(out / cell.name)
    if outcome is None or outcome.code:
        return {}
    summary = files.read_json(out / cell.name / "summary.json", files.FINISHED)
    each = {int(seed): metrics.headline(row) for seed, row in summary["last"]["per_seed"].items()}
    return {seed: value for seed, value in each.items() if value is not None}


def compare(pair: Pair, goal: Goal, out: Path) -> Difference:
    """What the finished seeds say about a pair."""
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
    """The cells, with all their seeds, that are run next; empty where there is nothing to do.

    First those that an earlier command has left unfinished, then baselines without the seeds of the
    cells that are compared with them, then more seeds for the pairs that are open.
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
    """The seeds that a cell gets next: a batch, or fewer at the end."""
    count = min(batch, goal.max_seeds - len(cell.seeds))
    return list(range(max(cell.seeds) + 1, max(cell.seeds) + 1 + count))


def _longer(pairs, cells, more):
    """The cells with more seeds, and the baselines which thereby lack some."""
    seeds = {name: [*cell.seeds, *more.get(name, ())] for name, cell in cells.items()}
    for pair in pairs:
        base = seeds[pair.baseline.name]
        base += [seed for seed in seeds[pair.cell.name] if seed not in base]
    return [
        cell._replace(seeds=seeds[name])
        for name, cell in cells.items()
        if len(seeds[name]) > len(cell.seeds)
    ]
