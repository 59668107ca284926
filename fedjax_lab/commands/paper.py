"""The command that reproduces published tables and prints measured beside published numbers.

python -m fedjax_lab.paper list [--probe] [--folder=DIR] [--configs=DIR]
                           [--config.data.folder=DIR ...]
python -m fedjax_lab.paper PAPER TABLE [--cells=PATTERN,PATTERN] [--seeds=0,1,2] [--out=DIR]
                           [--dry_run] [--folder=DIR] [--configs=DIR] [--config.run.rounds=20 ...]

`list` prints one line for each data set of each accuracy table of Client2Vec, FedC2I, FedConcat,
hFedF and FedPick, and of six tables of others: the number of cells, how many of them have their
data on this machine, and their cost. `fedconcat table1` runs the cells of that table.

--probe    trains FedAvg for a few steps on each data set and model that are here, and prints the
           hours of each table on this machine at that speed
--cells    runs only the cells whose names contain one of these patterns, separated by commas; *
           matches any text: --cells='fmnist/*#C=2/fedavg'
--seeds    default: 0, 1, ..., as many seeds as the paper used
--out      folder of the runs; default: runs/PAPER-TABLE
--dry_run  prints the command of each run without training; a # marks runs that cannot start on this
           machine
--folder   folder of several data sets, each in it or in a folder of its own in it; each run gets
           the one with its files as config.data.folder
--configs  folder of the config files; default: the configs that come with the package

Each run is a run of fedjax_lab.main with its own folder; columns of a table that come from the same
run share it. The same command continues unfinished runs. --config.KEY=VALUE changes all runs, which
then no longer have the paper's settings.

Exit codes: 0 done; 1 a run failed or diverged; 2 a usage, config or data error, reported in one
line; 130 interrupted, with the state of the running run saved.
"""

if __name__ == "__main__":  # before the imports, during which an interrupt may arrive
    from fedjax_lab.commands import command

    command.begin()

import fnmatch
import functools
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab import configs
from fedjax_lab.analysis import formats, requirements, runs
from fedjax_lab.commands import command, sweep
from fedjax_lab.commands.arguments import make_parser, parse_seeds, split_overrides
from fedjax_lab.data.fetching import presence
from fedjax_lab.data.places import folder_of
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput, check_path, cut, nearest, parse, printable
from fedjax_lab.experiment.config import Override, resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.papers import published
from fedjax_lab.papers.published import Recipe, Result
from fedjax_lab.running.storage import cloud, files
from fedjax_lab.sweeping import sweep_folder, sweep_plan


class Run(NamedTuple):
    """One run of fedjax_lab.main."""

    cell: sweep_plan.Cell
    path: str  # of the config file
    settings: list[tuple[str, str]]
    missing: str  # why the run cannot start on this machine; empty if it can


class Cell(NamedTuple):
    """A published number, and the runs that reproduce it."""

    name: str
    result: Result
    recipe: Recipe
    runs: list[Run]
    absent: str = ""  # what a release without some domains lacks for this cell
    note: str = ""  # with what the number is compared, if not with the printed one

    @property
    def missing(self) -> str:
        """Why the cell cannot be measured on this machine; empty if it can."""
        lacks = self.recipe.lacks or next((run.missing for run in self.runs if run.missing), "")
        return lacks or self.absent


class Request(NamedTuple):
    """The options of a command line that apply to every cell."""

    configs: Path
    overrides: Sequence[Override] = ()
    seeds: list[int] | None = None  # None: as many as the paper has
    folder: Path | None = None  # of the data sets
    probe: bool = False  # whether `list` measures speeds


# The plan.


def plan(results: Iterable[Result], request: Request) -> list[Cell]:
    """The cells of published numbers, with checked configs.

    If several cells share a run, it is one `Run` object in all of them.
    """
    described: dict[str, Run] = {}
    cells = []
    for result in results:
        recipe = published.recipe(result)
        for spec in recipe.specs:
            if spec.name not in described:
                described[spec.name] = _run(spec, recipe, request)
        of_cell = [described[spec.name] for spec in recipe.specs]
        cells.append(Cell(published.cell_name(result), result, recipe, of_cell))
    return [_with_domains(cell, cells) for cell in cells]


def _with_domains(cell, cells):
    """The cell as a release without some domains can measure it.

    The mean over domains is compared with the mean of the printed columns of those that exist.
    """
    present = requirements.domains(cell.runs[0].cell.config) if cell.runs else ()
    if not present:
        return cell
    prefix, _, domain = cell.recipe.measure.rpartition(".")
    if prefix == "domains":
        return cell if domain in present else cell._replace(absent=f"the release has no {domain}")
    measures = [f"domains.{name}" for name in present]
    row = cell.result._replace(column="", mean=0, std=None, conflict="")
    printed = [
        other.result.mean
        for other in cells
        if other.recipe.measure in measures
        and other.result._replace(column="", mean=0, std=None, conflict="") == row
    ]
    if len(printed) < len(present):
        return cell._replace(absent="only the mean over all domains is printed")
    mean, names = float(np.mean(printed)), ", ".join(present)
    note = (
        f"{cell.name}: the mean over {names}, beside {mean:.2f}, the mean of these printed columns;"
        f" over all domains {cell.result.mean:.2f} is printed"
    )
    return cell._replace(result=cell.result._replace(mean=mean, std=None, conflict=""), note=note)


def _run(spec, recipe, request):
    path = str(request.configs / spec.config)
    settings = [*spec.settings.items(), *request.overrides]
    config = resolve(_load(f"{path}:{spec.method}"), settings)
    given = "data.folder" in dict(settings)
    if request.folder and not given and (where := _folder_of(config.data.name, request.folder)):
        settings.append(("data.folder", str(where)))
        config = resolve(_load(f"{path}:{spec.method}"), settings)
    if present := requirements.domains(config):  # one client for each
        settings.append(("partition.num_clients", str(len(present))))
        config = resolve(_load(f"{path}:{spec.method}"), settings)
    seeds = list(range(recipe.seeds)) if request.seeds is None else request.seeds
    cell = sweep_plan.Cell(name=spec.name, method=spec.method, grid={}, config=config, seeds=seeds)
    return Run(cell, path, settings, requirements.missing(config))


_load = functools.cache(load_config)


@functools.cache
def _folder_of(data, folder):
    """`folder` or the first folder in it that has the files of a data set; None if none has."""
    inside = sorted(each for each in folder.iterdir() if each.is_dir())
    return next((f for f in (folder, *inside) if presence.has_files(data, str(f))), None)


def choose(cells: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """The cells whose names match at least one pattern.

    A pattern that equals a name selects that cell alone; any other selects all cells whose names
    contain it. Raises BadInput for a pattern without a match.
    """
    names = [cell.name for cell in cells]
    chosen = set()
    for pattern in patterns or [""]:
        same = [name for name in names if name == pattern]
        fitting = same or [name for name in names if fnmatch.fnmatchcase(name, f"*{pattern}*")]
        if not fitting:
            parts = {part for name in names for part in (name, *name.split("/"))}
            wanted = f"--cells={cut(pattern, 80)}"
            raise BadInput(f"{wanted}: no cell matches; {nearest(pattern, parts)}")
        chosen |= set(fitting)
    return [cell for cell in cells if cell.name in chosen]


# The numbers.


def values(cell: Cell, out: Path) -> list[float] | None:
    """The measured percentages or rounds, one per seed, or one per client and seed.

    None unless all runs of the cell finished without a failure.
    """
    rows = []
    for run in cell.runs:
        folders = _folders(run, out)
        outcomes = [sweep_folder.ended(folder) for folder in folders]
        if any(outcome is None or outcome.code for outcome in outcomes):
            return None
        try:
            rows.append(runs.row_of(run.cell.name, [runs.read(folder) for folder in folders]))
        except files.Damaged:
            return None
    if not rows:
        return None
    if cell.recipe.per_client:
        return runs.per_client(rows[0], cell.recipe.way, cell.recipe.measure)
    if cell.recipe.target:
        return _rounds_until(rows[0], cell.recipe)
    measured = [runs.measured(row, cell.recipe.way) for row in rows]
    try:
        each = [[seeds[s][cell.recipe.measure] for seeds in measured] for s in measured[0]]
    except KeyError:
        return None  # such a run does not have the way or the measure
    return [float(np.mean(one)) for one in each]


def _rounds_until(row, recipe):
    """The first round of each seed in which the measure reaches the target; None if none does."""
    reached = [
        [r["round"] for r in rows if runs.measures(r).get(recipe.measure, 0.0) >= recipe.target]
        for rows in row.seeds.values()
    ]
    return [float(rounds[0]) for rounds in reached] if all(reached) else None


def _folders(run, out):
    """The folder of a run, and those that exist for its additional seeds."""
    names = sweep_folder.as_begun([run.cell], out)
    return [out / name for name in names if name == run.cell.name or (out / name).is_dir()]


class Line(NamedTuple):
    """The comparison of a measured with a published number; missing values are None."""

    mean: float | None = None
    std: float | None = None  # population standard deviation, as in the papers
    n: int = 0  # number of seeds
    difference: float | None = None  # measured minus published
    in_stds: float | None = None  # the difference in published standard deviations


def compare(result: Result, measured: Sequence[float] | None, seeds: int) -> Line:
    """Compares the measured values of a cell with its published number."""
    if not measured:
        return Line()
    mean = float(np.mean(measured))
    std = float(np.std(measured)) if len(measured) > 1 else None
    difference = mean - result.mean
    return Line(mean, std, seeds, difference, difference / result.std if result.std else None)


# Output for people.


def show(cells: Sequence[Cell], out: Path) -> str:
    """The table of published and measured numbers, as text."""
    unit = "rounds" if any(cell.recipe.target for cell in cells) else "%"
    header = [f"cell, {unit}", "published", "measured", "seeds", "difference", "in std"]
    lines = []
    for cell in cells:
        seeds = len(cell.runs[0].cell.seeds) if cell.runs else 0
        line = compare(cell.result, values(cell, out), seeds)
        published = formats.mean_std(cell.result.mean, cell.result.std)
        measured = formats.mean_std(line.mean, line.std) if line.n else _state(cell, out)
        numbers = [formats.number(line.n or None, "d")]
        numbers += [formats.number(x, "+.2f") for x in (line.difference, line.in_stds)]
        lines.append([cell.name, published, measured, *numbers])
    over_clients = any(cell.recipe.per_client for cell in cells)
    title = f"mean +- population std over seeds{' and clients' * over_clients}"
    return formats.terminal(formats.Table(title, header, lines))


def _state(cell, out):
    if cell.missing:
        return formats.NONE
    states = [sweep_folder.shown(*_folders(run, out)) for run in cell.runs]
    bad = [state.partition(":")[0] for state in states if not state[0].isdigit()]
    if bad:
        return bad[0]
    if damaged([cell], out):
        return "damaged"
    folders = [folder for run in cell.runs for folder in _folders(run, out)]
    ended = cell.recipe.target and all(sweep_folder.ended(folder) for folder in folders)
    return "not reached" if ended else "not measured"


def damaged(cells: Sequence[Cell], out: Path) -> list[str]:
    """One message for each finished run whose files are damaged."""
    notes: dict[str, None] = {}
    for folder in (each for cell in cells for run in cell.runs for each in _folders(run, out)):
        if sweep_folder.ended(folder):
            try:
                runs.read(folder)
            except files.Damaged as error:
                notes[str(error)] = None
    return list(notes)


def remarks(cells: Sequence[Cell], overrides: Sequence[Override]) -> list[str]:
    """Notes on differences from the paper, contradictions in it, and cells that cannot be run."""
    out = [f"--config.{key}={value}: not the paper's setting" for key, value in overrides]
    runnable = [cell for cell in cells if not cell.missing]
    out += dict.fromkeys(note for cell in runnable for note in cell.recipe.notes)
    out += [f"{cell.name}: {cell.result.conflict}" for cell in runnable if cell.result.conflict]
    out += [cell.note for cell in runnable if cell.note]
    lacking = Counter(cell.missing for cell in cells if cell.missing)
    return out + [f"{n} cell{'s' * (n > 1)} not run: {reason}" for reason, n in lacking.items()]


def overview(request: Request) -> str:
    """The output of `list`: a line for each data set and model of each table."""
    header = ["table", "data", "model", "cells", "here", "runs", "seeds", "M examples", "hours"]
    lines: list[list[str]] = []
    reasons: dict[str, None] = {}
    for (paper, table), rows in published.tables().items():
        groups: dict[tuple[str, str], list[Cell]] = {}
        for cell in plan(rows, request):
            groups.setdefault((cell.result.dataset, cell.result.model), []).append(cell)
        for (dataset, model), cells in groups.items():
            name = f"{paper} table{table}"
            here = [cell for cell in cells if not cell.missing]
            costs, fault = _costs(cells, here, request)
            reasons |= {f"{dataset}: {model} has no speed: {fault}": None} if fault else {}
            lines.append([name, dataset, model, str(len(cells)), str(len(here)), *costs])
            reasons |= {f"{name}: {c.recipe.lacks}": None for c in cells if c.recipe.lacks}
            # Without the remedy, which the command of the table itself prints.
            missing = [c.missing.partition(": ")[0] or "here" for c in cells if not c.recipe.lacks]
            reasons |= {f"{dataset}: {what}": None for what in missing}
    title = (
        "here: cells that this machine can run. M examples: millions of training examples processed"
        " by the clients of all runs and seeds.\nhours: of these examples at FedAvg's speed on this"
        " machine, without evaluations; --probe measures it where the data are here."
    )
    return "\n".join([formats.terminal(formats.Table(title, header, lines)), "", *reasons])


def _costs(cells, here, request):
    """The columns runs, seeds, M examples and hours for these cells, and why there is no speed.

    here: the cells that this machine can run.
    """
    once = {run.cell.name: run.cell for cell in cells for run in cell.runs}.values()
    if not once:
        return [formats.NONE] * 4, ""
    trained = [requirements.cost(cell.config) for cell in once]  # on so many examples, one seed
    total = speed = None
    fault = ""
    if None not in trained:
        total = sum(n * len(cell.seeds) for n, cell in zip(trained, once, strict=True))
        if request.probe and here:
            speed, fault = _probed(here[0].runs[0], request)
    hours = total / speed / 3600 if speed else None
    numbers = [formats.number(total and total / 1e6, ",.0f"), formats.number(hours, ",.1f")]
    return [str(len(once)), str(max(len(cell.seeds) for cell in once)), *numbers], fault


def _probed(run, request):
    """The examples per second of FedAvg on the data and model of a run, or why there are none."""
    kinds = "model.", "data.name", "data.folder", "data.size", "partition.num_clients"
    settings = [(key, value) for key, value in run.settings if key.startswith(kinds)]
    short = "run.", "local.epochs", "local.steps", "method."  # the probe chooses these
    settings += [(k, v) for k, v in request.overrides if not k.startswith(short)]
    return _speed(run.path, tuple(dict(settings).items()))


@functools.cache
def _speed(path, settings):
    try:
        return requirements.speed(resolve(_load(f"{path}:fedavg"), list(settings))), ""
    except BadInput as error:
        return None, str(error)


def command_line(run: Run, out: Path) -> str:
    """The run as a command line of fedjax_lab.main."""
    words = ["python", "-m", "fedjax_lab.main", f"--config={run.path}:{run.cell.method}"]
    words.append(f"--workdir={cloud.address(out / run.cell.name)}")
    words.append(f"--seeds={','.join(map(str, run.cell.seeds))}")
    return shlex.join([*words, *(f"--config.{key}={value}" for key, value in run.settings)])


# The command line.


def main(argv: list[str]) -> int:
    """Runs the command with these arguments, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    args, request = _parse(argv)
    if args.what == ["list"]:
        print(overview(request))
        return 0
    rows = published.find(*args.what)
    cells = choose(plan(rows, request), args.cells.split(",") if args.cells else [])
    name = f"{rows[0].paper}-table{rows[0].table}"
    with cloud.staged(args.out or f"runs/{name}") as out:
        return _carry_out(args, request, cells, out)


def _carry_out(args, request, cells, out):
    todo = {run.cell.name: run for cell in cells if not cell.missing for run in cell.runs}
    if args.dry_run:
        each = sweep_folder.as_begun([run.cell for run in todo.values()], out)
        for name, cell in each.items():
            sweep_folder.check_cell(cell, out / name)
        every = {run.cell.name: run for cell in cells for run in cell.runs}
        shown = ["# " * bool(run.missing) + command_line(run, out) for run in every.values()]
        print("\n".join([*shown, "", *remarks(cells, request.overrides)]))
        return 0
    code = sweep.train([run.cell for run in todo.values()], out)
    print(f"\n{show(cells, out)}\n")
    notes = [*remarks(cells, request.overrides), *damaged(cells, out)]
    print("\n".join([*map(printable, notes), f"runs: {cloud.address(out)}"]))
    return code


def _parse(argv):
    argv, overrides = split_overrides(argv)
    parser = make_parser("--cells", "--seeds", "--out", "--configs", "--folder")
    parser.add_argument("what", nargs="*")
    parser.add_argument("--dry_run", action="store_true")
    parser.add_argument("--probe", action="store_true")
    args = parse(parser, argv)
    if args.probe and args.what != ["list"]:
        raise BadInput("--probe belongs to `fedjax-lab paper list`")
    cloud.check("--out", args.out)
    check_path("--configs", args.configs)
    check_path("--folder", args.folder)
    if args.what != ["list"] and len(args.what) != 2:
        raise BadInput(
            "no table is given; for example `fedjax-lab paper fedconcat table1`; `fedjax-lab paper"
            " list` shows all tables"
        )
    folder = folder_of(args.folder) if args.folder else None
    seeds = parse_seeds(args.seeds)
    return args, Request(_configs(args.configs), overrides, seeds, folder, args.probe)


def _configs(wanted):
    for folder in map(Path, [wanted] if wanted else configs.__path__):
        if (folder / "fedconcat_small.py").is_file():
            return folder
    where = wanted or "the package"
    raise BadInput(f"{where} does not contain the papers' configs; set --configs=DIR")


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:], prints_result=True)
