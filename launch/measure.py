"""Measures the numbers of a table of the documentation, in one session or in several.

    python launch/measure.py NAME [--cells=PATTERN] [--seeds=0,1] [--out=DIR] [--commit=HASH]
                                  [--budget=HOURS]
    python launch/measure.py NAME --list
    python launch/measure.py NAME --print
    python launch/measure.py NAME --write
    python launch/measure.py NAME --draw

NAME is a file of launch/tables. The command runs those cells of its table that have no numbers yet,
one after another, and adds the numbers of each cell to docs/results/NAME.csv as soon as the cell is
finished. Commit docs/results, and another session, also on another machine, measures the remaining
cells. An interrupted cell is resumed from its folder in --out. Numbers that were measured with
other settings than the current ones are stale: they are never shown, and their cells are run again.
For that, choose another --out than the folder that holds the earlier runs.

--cells   only the cells whose names match the pattern, for example 'fedavg*'
--seeds   only these seeds of each cell
--out     the folder of the runs; default: runs/NAME
--commit  the commit of the code; needed only in a copy of the repository without .git
--budget  no cell begins after this many hours; the same command continues
--list    list the cells, and which seeds of each are measured, stale or left; runs nothing
--print   print the table in Markdown from the recorded numbers; runs nothing
--write   write the table from the recorded numbers to its page of the documentation, between the
          lines <!-- NAME --> and <!-- end NAME -->; runs nothing
--draw    draw the figure of the table, docs/PICTURE, from the recorded numbers; runs nothing

A table file has three functions, and PAGE if its page is another one than docs/results.md:

cells(out)       the list of its cells: fedjax_lab.sweeping.sweep_plan.Cell, made by records.cell.
                 out: the folder of the runs, for settings that name the folder of another cell;
                 a cell that needs another one has note={"needs": [NAME]}
measured(row)    the numbers to record from the runs of a cell (analysis.runs.Row), as
                 {seed: {name: number}}; for example records.in_rounds("last")
                 or instead computed(cell), the numbers of a cell for which nothing is trained; it
                 raises BadInput, which is printed, if the cell has none
tables(records)  the list of its tables (analysis.formats.Table), computed from the records alone

and, with the constant PICTURE, picture(records), its figure of Matplotlib.

Exit codes are those of fedjax_lab.sweep.
"""

if __name__ == "__main__":  # before the slow imports, so that an interrupt during them is handled
    from fedjax_lab.commands import command

    command.begin()

import argparse
import fnmatch
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import jax
import records
from records import Record

import fedjax_lab
from fedjax_lab.analysis import formats, runs
from fedjax_lab.commands import command, sweep
from fedjax_lab.commands.arguments import parse_seeds
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput, nearest, parse, quoted
from fedjax_lab.running import plots
from fedjax_lab.running.storage import files, metric_rows
from fedjax_lab.sweeping import sweep_folder
from fedjax_lab.sweeping.sweep_plan import Cell

TABLES = Path(__file__).parent / "tables"
PAGE = "results.md"
CODE = "fedjax_lab", "configs", "launch"


def main(argv: list[str]) -> int:
    """Run the command with the arguments `argv`, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    args = _parse(argv)
    table, code = load(args.name), 0
    cells = table.cells(args.out)
    if args.list:
        print(listed(args.name, cells, args.out))
        return 0
    if args.draw:
        print(draw(args.name, table, cells, args.out))
        return 0
    if not (args.print or args.write):
        code = measure(args, table, cells)
    text = shown(args.name, table, cells, args.out)
    if args.write:
        write(page(table), args.name, text)
    else:
        print("\n" + text)
    return code


def _parse(argv):
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("name", nargs="?", default="")
    for flag in ("--cells", "--seeds", "--commit"):
        parser.add_argument(flag)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path)
    for flag in ("--list", "--print", "--write", "--draw"):
        parser.add_argument(flag, action="store_true")
    args = parse(parser, argv)
    args.out = args.out or Path("runs") / args.name
    args.seeds = None if args.seeds is None else parse_seeds(args.seeds.split(","))
    return args


def load(name: str):
    """Import the table file launch/tables/NAME.py. Raises BadInput if it does not exist."""
    names = sorted(path.stem for path in TABLES.glob("*.py"))
    if name not in names:
        raise BadInput(f"unknown table {quoted(name)}; {nearest(name, names)}")
    spec = importlib.util.spec_from_file_location(f"tables_{name}", TABLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(table) -> Path:
    """The page of the documentation that shows a table."""
    return records.ROOT / "docs" / getattr(table, "PAGE", PAGE)


# Measuring.


def measure(args, table, cells: list[Cell]) -> int:
    """Run the cells that have no numbers yet and record their numbers; returns the exit code.

    Cells that differ only in numbers run together, if the table allows it (TOGETHER).
    """
    code, where = 0, args.commit or commit()
    end, by_name = time.monotonic() + 3600 * args.budget, {each.name: each for each in cells}
    todo = [_with_folder(cell, by_name[cell.name]) for cell in left(args, cells)]
    groups = sweep.alike(todo, args.out) if hasattr(table, "TOGETHER") else [[c] for c in todo]
    for i, group in enumerate(groups, 1):
        if time.monotonic() > end:
            print(f"the budget is used up; {len(groups) - i + 1} of {len(groups)} are left")
            break
        seeds = _listed(group[0].seeds)
        print(f"cell {i} of {len(groups)}: {_name(group)}, seeds {seeds}", flush=True)
        needed = [by_name[name] for cell in group for name in cell.note.get("needs", ())]
        if not hasattr(table, "computed"):
            code |= sweep.train([*needed, *group], args.out, together=len(group) > 1)
        for cell in group:
            _record(args, table, by_name, cell, where)
    return code


def _with_folder(cell, whole):
    """The cell with the name of its folder, which has the seeds if some are left out."""
    if whole.seeds == cell.seeds:
        return cell
    return cell._replace(name=f"{cell.name}-seeds-{_listed(cell.seeds)}")


def _name(group):
    return group[0].name if len(group) == 1 else f"{group[0].name} and {len(group) - 1} like it"


def _record(args, table, by_name, cell, where):
    """Record the numbers of a cell that has ended, or the reason why its method cannot run."""
    name = cell.name.partition("-seeds-")[0]
    settings = records.settings_of(by_name[name].config, args.out)
    facts, folder = (records.digest(settings), where, fedjax_lab.__version__), args.out / cell.name
    make = computed if hasattr(table, "computed") else read
    measured = make(table, cell._replace(name=name), folder)
    new = [
        Record(name, seed, *facts, device, of_seed, records.data_digest(folder, seed))
        for seed, device, of_seed in measured
    ]
    if new:
        records.add(args.name, new, settings)
    failure = sweep_folder.failure(folder)
    if failure and failure.code == 2:
        records.add_reason(args.name, name, failure.said)


def left(args, cells: list[Cell]) -> list[Cell]:
    """The cells chosen by --cells and --seeds, each with its seeds that have no numbers yet."""
    chosen = [each for each in cells if fnmatch.fnmatchcase(each.name, args.cells or "*")]
    if not chosen:
        names = [each.name for each in cells]
        raise BadInput(f"--cells={quoted(args.cells)}: no such cell; {nearest(args.cells, names)}")
    if args.seeds is not None and not {*args.seeds} & {s for cell in chosen for s in cell.seeds}:
        raise BadInput(f"--seeds={_listed(args.seeds)}: no chosen cell has one of these seeds")
    current = records.current(*records.read(args.name), cells, args.out)
    measured = {(record.cell, record.seed) for record in current}
    todo = []
    for cell in chosen:
        wanted = [s for s in cell.seeds if args.seeds is None or s in args.seeds]
        seeds = [s for s in wanted if (cell.name, s) not in measured]
        todo += [cell._replace(seeds=seeds)] if seeds else []
    return todo


def computed(table, cell: Cell, _: Path) -> list[tuple[int, str, dict[str, float]]]:
    """As `read`, for a cell for which nothing is trained."""
    device = f"{len(jax.devices())} x {jax.default_backend()}"
    try:
        return [(seed, device, values) for seed, values in table.computed(cell).items()]
    except BadInput as error:
        print(f"{cell.name}: {error}", flush=True)
        return []


def read(table, cell: Cell, folder: Path) -> list[tuple[int, str, dict[str, float]]]:
    """(seed, device, values) for each seed of a run that has ended; an empty list otherwise.

    The values of a run that diverged are the round in which it did (0: unknown).
    """
    outcome = sweep_folder.ended(folder)
    if outcome is None:
        return []
    summary = files.read_json(folder / "summary.json", files.SUMMARY) or {}
    device = summary.get("device", "")
    if outcome.code:
        round = summary.get("diverged", {}).get("round", 0)
        return [(seed, device, {records.DIVERGED: round}) for seed in cell.seeds]
    run = runs.read(folder)
    seeds = {seed: [r for r in run.rows if r["seed"] == seed] for seed in cell.seeds}
    measured = table.measured(runs.Row(cell.name, [run], seeds))
    return [(seed, device, values) for seed, values in measured.items()]


def commit() -> str:
    """The commit of the code, followed by + if files of CODE have uncommitted changes."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        return head + "+" * bool(_git("status", "--porcelain", "--", *CODE))
    except (OSError, subprocess.CalledProcessError) as error:
        raise BadInput("git cannot determine the commit; give it as --commit=HASH") from error


def _git(*words):
    done = subprocess.run(
        ["git", *words], cwd=records.ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


# Output.


def listed(name: str, cells: list[Cell], out: Path) -> str:
    """A table with a line for each cell: its measured, stale and remaining seeds."""
    all_records, settings = records.read(name)
    current = records.current(all_records, settings, cells, out)
    rows = []
    for cell in cells:
        of_cell = {r.seed for r in current if r.cell == cell.name}
        stale = {r.seed for r in all_records if r.cell == cell.name} - of_cell
        others = [seed for seed in cell.seeds if seed not in of_cell]
        rows.append([cell.name, *(_listed(s) or formats.NONE for s in (of_cell, stale, others))])
    header = ["cell", "measured", "stale", "left"]
    return formats.terminal(formats.Table(f"{name}: seeds of each cell", header, rows))


def shown(name: str, table, cells: list[Cell], out: Path) -> str:
    """The tables in Markdown, followed by a line that says where their numbers come from."""
    all_records, settings = records.read(name)
    current = records.current(all_records, settings, cells, out)
    tables = [measured_rows(each) for each in table.tables(current)]
    texts = [formats.markdown(each) for each in tables if each.cells]
    return "\n\n".join([*texts, sources(name, cells, current, len(all_records) - len(current))])


def measured_rows(table: formats.Table) -> formats.Table:
    """The table without the rows that have no numbers yet."""
    kept = [i for i, row in enumerate(table.cells) if {*row[1:]} - {formats.NONE}]
    bold = {(kept.index(i), j) for i, j in table.bold if i in kept}
    return table._replace(cells=[table.cells[i] for i in kept], bold=bold)


def sources(name: str, cells: list[Cell], current: list[Record], stale: int) -> str:
    """The command, the number of runs, and the commits, versions, devices and seeds of the runs."""
    wanted = sum(len(cell.seeds) for cell in cells)
    of_all = {field: sorted({getattr(r, field) for r in current}) for field in records.FACTS}
    parts = [f"Command: `python launch/measure.py {name}`"]
    parts += [f"{len(current)} of {wanted} runs"]
    parts += [f"{stale} with earlier settings are left out"] * bool(stale)
    labels = {"commit": "commits", "version": "versions", "device": "devices", "seed": "seeds"}
    parts += [f"{label}: {_listed(of_all[key], ', ')}" for key, label in labels.items() if current]
    return "; ".join(parts) + "."


def _listed(values, separator=","):
    return separator.join(map(str, sorted(values)))


def draw(name: str, table, cells: list[Cell], out: Path) -> Path:
    """Draw the figure of a table, and return its file."""
    if not hasattr(table, "PICTURE"):
        raise BadInput(f"--draw: {name} has no figure")
    figure = table.picture(records.current(*records.read(name), cells, out))
    return plots.save(figure, records.ROOT / "docs" / table.PICTURE)


def write(page: Path, name: str, text: str) -> None:
    """Replace the text of a page between the lines <!-- NAME --> and <!-- end NAME -->."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->\n"
    before, opened, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise BadInput(f"{page} lacks the lines {begin.strip()} and {end.strip()}")
    metric_rows.write_text(page, f"{before}{begin}{text}\n{end}{after}")


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
