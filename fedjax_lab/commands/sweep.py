"""The command that trains many runs: every method at every point of a grid of settings.

python -m fedjax_lab.sweep --config=configs/X.py --out=DIR [--methods=fedavg,fedprox]
                           [--grid=method.mu=0.01,0.1] [--grid=partition.alpha=0.1,0.5]
                           [--tune=random:20|tpe:20 [--on=validation] [--range=method.mu=log:...]]
                           [--seeds=0,1,2] [--workers=N | --together] [--share=I/N]
                           [--log=wandb,mlflow] [--nocompilation_cache] [--trust]
                           [--config.run.rounds=20 ...]
python -m fedjax_lab.sweep --status=DIR

A cell is one method at one grid point; all its seeds are one run. Its folder DIR/CELL is the folder
of a run of fedjax_lab.main, and DIR/sweep.json is the plan. If a grid key is not a setting of a
method, the method has one cell for all values of that key. The same command continues unfinished
cells. It also adds cells for further methods and grids if everything else is unchanged. With more
rounds, all cells continue. With more --seeds, the new ones of a cell are a run of their own beside
it, such as DIR/CELL-seeds-2; tables and reports show both as one row. A failed or diverged cell has
a file error.txt. Failed cells are tried again, diverged cells are not.

Cells run one after another in this process. With --workers=N, N cells run at a time in processes of
their own: each has an equal part of the CPU cores, or one GPU. With --together, new cells that
differ only in numerical settings of `method` and `local` run as one vmapped computation. If that
fails (out of memory, a setting that cannot be traced, a cell that diverges), they run one by one.

With --trust, code that the folder of config.run.start_from names is executed.

With --log (see fedjax_lab.main), each cell is one run of the service. All cells are in one group of
Weights & Biases, or one experiment of MLflow, with the name of DIR.

With --tune=random:20, a random search chooses the settings of each method first, with the same
number of draws for every method: 20 at each grid point. It draws local.lr and the settings for
which the method's file declares RANGES, unless --config.KEY or --grid sets them. --range replaces
or adds a range: log:LOW,HIGH (log-uniform), uniform:LOW,HIGH or choice:A,B,C. Methods that share a
setting get the same quantiles of its range; random:20:7 uses another stream of random numbers. Each
draw is a run of the first seed in DIR/draws. The draw with the highest validation accuracy, in its
best round by that accuracy, becomes the method's cell and is run with all seeds. With --on=test the
test accuracy after the last round decides, as in some papers. sweep.json and reports state the cost
of each search.

With --tune=tpe:20 (extra `tune`), Optuna chooses each draw from the results of the earlier ones.
DIR/optuna.log has its studies, which optuna-dashboard shows. From a quarter of the rounds on, and
after five completed draws, a draw ends early if its best score so far is below the median of the
scores that the completed draws had in this round; draws that ended early do not count (not with
--workers). A failed draw is replaced when the command is repeated.

--status shows which cells are done, running, waiting or failed, and estimates when the sweep ends.
It changes no file.

DIR may be in the cloud (gs://BUCKET/FOLDER, see fedjax_lab.main). A sweep there has no lock: start
it only once, or in parts with --share. If two commands run the same cell, the command that began
the cell first stops running it.

With --share=I/N, only every N-th cell is run, starting with cell I (the first is 0), so that N
commands on hosts that all see DIR can share a sweep. With --tune=random a share includes all draws
of its cells. With tpe it has every N-th draw of each study; then it waits for commands that run now
and have draws of other shares left. If a share has not been started, repeat the command later.

Exit codes: 0 done; 1 a cell failed, or the machine did (disk, memory); 2 a usage, config or data
error, reported in one line before any cell runs; 130 interrupted, with the state of the running
cells saved.
"""

if __name__ == "__main__":  # before the imports, during which an interrupt may arrive
    from fedjax_lab.commands import command

    command.begin()

import argparse
import contextlib
import functools
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import ml_collections
from tqdm import tqdm

from fedjax_lab.analysis.notes import search_cost
from fedjax_lab.commands import command
from fedjax_lab.commands.arguments import make_parser, parse_seeds, split_overrides
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput, cut, parse, printable, quoted, reason_of
from fedjax_lab.experiment import experiment, references
from fedjax_lab.experiment.config_files import split
from fedjax_lab.running import compilation_cache, loggers, runner, workdir
from fedjax_lab.running.storage import cloud, lock
from fedjax_lab.simulation.units import in_words
from fedjax_lab.sweeping import sweep_status, sweep_study, sweep_tuning
from fedjax_lab.sweeping.sweep_folder import (
    DIVERGED,
    Outcome,
    as_begun,
    check_cell,
    check_folder,
    done,
    heading,
    make_ready,
    record,
    shown,
    shown_metrics,
    tail,
    write_plan,
)
from fedjax_lab.sweeping.sweep_plan import Cell, Shared, parse_grid, plan, share_of
from fedjax_lab.sweeping.sweep_status import aligned
from fedjax_lab.sweeping.sweep_tuning import Search
from fedjax_lab.sweeping.sweep_workers import run_in_workers

MOST_WORKERS = 1000


# Running.


def load_once() -> Callable[[ml_collections.ConfigDict], Dataset]:
    """Returns `experiment.load_data` with a cache for successive configs with the same data."""
    last = [None, None]

    def load(config):
        if config.data != last[0]:
            last[:] = config.data, experiment.load_data(config.data)
        return last[1]

    return load


def check(cells: Iterable[Cell], load: Callable[..., Dataset]) -> None:
    """Raises BadInput, with the name of the cell, if a cell cannot be built from its config."""
    for cell in cells:
        try:
            experiment.build(cell.config, cell.seeds, load(cell.config))
        except BadInput as error:
            raise BadInput(f"{cell.name}: {error}") from error
        except (Exception, SystemExit):
            continue  # the same error is raised, and recorded, when the cell is run


def run_here(
    groups: Iterable[list[Cell]],
    out: Path,
    load: Callable[..., Dataset],
    log: str = "",
    watch: Callable[[Cell], runner.OnEvaluation] | None = None,
) -> Generator[tuple[Cell, Outcome], None, None]:
    """Runs cells in this process and yields the outcome of each.

    The cells of a group run as one computation, or one after another if that fails.

    watch: cell -> a function that is called after each evaluation of its run.
    """
    for group in groups:
        if len(group) > 1:
            _try_together(group, out, load, log)
            gc.collect()
        for cell in group:
            folder = out / cell.name
            seen = watch and watch(cell)
            yield cell, done(cell, folder) or _run_one(cell, make_ready(folder), load, log, seen)
            gc.collect()  # the devices' memory


def alike(cells: Iterable[Cell], out: Path) -> list[list[Cell]]:
    """Groups of new cells that differ only in numerical settings of `method` and `local`."""
    groups = {}
    for cell in cells:
        if (out / cell.name / "config.json").exists():  # it resumes from its own last round
            groups[cell.name] = [cell]
            continue
        config = cell.saved
        for section in ("method", "local"):
            config[section] = {k: v for k, v in config[section].items() if type(v) is not float}
        groups.setdefault(json.dumps(config, sort_keys=True), []).append(cell)
    return list(groups.values())


def _try_together(group, out, load, log):
    try:
        parts = [experiment.build(c.config, c.seeds, load(c.config)) for c in group]
        runner.run_together(parts, [make_ready(out / c.name) for c in group], log)
    except (Exception, SystemExit) as error:
        reason = reason_of(error)
        tqdm.write(f"running one by one instead of together: {group[0].name} ...: {reason:.200}")


def _run_one(cell, folder, load, log, on_evaluation):
    try:
        job = experiment.build(cell.config, cell.seeds, load(cell.config))
        is_begun = (folder / "config.json").exists()
        runner.run(
            job,
            folder,
            resume=is_begun,
            log=log,
            on_evaluation=on_evaluation,
            part=cut(cell.name, 40),
        )
    except BadInput as error:
        return Outcome(2, str(error))
    except runner.Diverged as error:
        return Outcome(DIVERGED, str(error))
    except (Exception, SystemExit) as error:
        if failure := command.machine_failure(error):
            return Outcome(1, failure)
        if said := command.users_mistake(error):
            return Outcome(2, said)
        return Outcome(1, tail(traceback.format_exc()))
    return Outcome(0)


def train(cells: Iterable[Cell], out: Path, together: bool = False) -> int:
    """Runs the unfinished cells, each in a folder below `out`.

    together: new cells that differ only in numbers run as one computation.

    Returns 0, or 1 if a cell failed or diverged. Raises BadInput if a folder holds another run.
    """
    cells = as_begun(cells, out).values()
    for cell in cells:
        check_cell(cell, out / cell.name)
    with lock.owned_share(out):
        todo = [cell for cell in cells if not done(cell, out / cell.name)]
        lock.check_free([out / cell.name for cell in todo])
        count = len(cells) - len(todo)
        print(f"{len(cells)} runs in {cloud.address(out)}, {count} of them done", flush=True)
        compilation_cache.enable()
        parallel.check_devices()
        groups = alike(todo, out) if together else [[cell] for cell in todo]
        results = run_here(groups, out, load_once())
        follow(results, len(todo), len(cells), out)
    outcomes = [done(cell, out / cell.name) for cell in cells]
    return int(any(outcome is None or outcome.code for outcome in outcomes))


# Output for people.


def follow(
    results: Generator[tuple[Cell, Outcome], None, None], todo: int, total: int, out: Path
) -> None:
    """Records and prints how each cell ends, with an estimate of the remaining time.

    results: the cells as they end. todo: how many of the `total` cells are to be run.
    """
    began, layout = time.monotonic(), "{desc}{n_fmt}/{total_fmt} |{bar}| {remaining} left"
    hidden = not sys.stderr.isatty()
    bar = tqdm(total=total, initial=total - todo, bar_format=layout, disable=hidden)
    with contextlib.closing(results), bar:
        for i, (cell, outcome) in enumerate(results, 1):
            record(outcome, out / cell.name)
            took = time.monotonic() - began
            left = tqdm.format_interval(took / i * (todo - i))
            number = f"{total - todo + i}/{total}"
            clock = time.strftime("%H:%M:%S")
            bar.write(f"{clock}  {number}  {cell.name}  {shown(out / cell.name)}  {left} left")
            sys.stdout.flush()
            bar.update()


def table(cells: dict[str, Cell], keys: Sequence[str], out: Path) -> str:
    """A table with a line per method and grid point: the values of the keys, and the metrics."""
    folders: dict[tuple, list[Path]] = {}
    for name, cell in cells.items():
        values = [cell.grid.get(key, "") for key in keys]
        folders.setdefault((cell.config.method.name, *values), []).append(out / name)
    metrics = [m.rpartition(":")[2] for m in dict.fromkeys(_metrics(cells))]
    rows = [[*at, shown(*runs), *shown_metrics(runs, metrics)] for at, runs in folders.items()]
    headings = [heading(out / name for name in cells), *map(in_words, metrics)]
    return aligned([["method", *keys, *headings], *rows])


def _metrics(cells):
    return [metric for cell in cells.values() for metric in cell.config.run.metrics]


# The command line.


class Work(NamedTuple):
    """A sweep: the parsed command line, and what its runs share."""

    args: argparse.Namespace
    shared: Shared
    search: Search | None  # of --tune: how the settings of each method are searched
    out: Path
    load: Callable[[ml_collections.ConfigDict], Dataset]


def main(argv: list[str]) -> int:
    """Runs the command line and returns its exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    if any(text.partition("=")[0] == "--status" for text in argv[1:]):
        return _show_status(argv[1:])
    args, methods, shared, search = _parse(argv)
    cells = plan(shared, methods, parse_grid(args.grid))
    chosen = share_of(cells, args.share)
    contenders = sweep_tuning.contenders(cells.values(), shared, search) if search else []
    of_share = [each for each in contenders if each.cell.name in chosen]
    with (
        references.trusting(args.trust),
        cloud.staged(args.out) as out,
        lock.owned_share(out, args.share),  # before data are loaded
    ):
        work = Work(args, shared, search, out, load_once())
        cells, chosen = as_begun(cells.values(), out), as_begun(chosen.values(), out)
        check_folder(shared, {} if search else cells, out)
        if args.workers:
            jax.config.update("jax_platforms", "cpu")  # leaves the accelerators to the workers
        if args.compilation_cache:
            compilation_cache.enable()
        parallel.check_devices()
        if search is None:
            return _run_and_show(work, cells, chosen)
        if search.by == "tpe":  # a share makes draws of all cells, and then runs its own ones
            searched = {each.cell.name: each for each in _search(work, contenders)}
            of_share = [searched[each.cell.name] for each in of_share]
        tuned = _tune(work, of_share)
        best = as_begun(tuned.values(), out)
        return _run_and_show(work, best, best) or int(len(tuned) < len(of_share))


def _show_status(argv):
    place = parse(make_parser("--status"), argv).status
    cloud.check("--status", place)
    with cloud.read([place]) as (folder,):
        print(cloud.named("\n".join(map(printable, sweep_status.show(folder).splitlines()))))
    return 0


def _run_and_show(work, cells, chosen):
    """Adds the cells to the plan, runs the chosen ones and prints the results."""
    out = work.out
    _carry_out(work, cells, list(chosen.values()), "cells")
    keys = dict.fromkeys(key for cell in chosen.values() for key in cell.grid)
    print(f"\nafter the last round\n{table(chosen, list(keys), out)}")
    print(f"\nresults: {cloud.address(out)}")
    return int(not all(done(cell, out / name) for name, cell in chosen.items()))


def _carry_out(work, planned, runs, what):
    """Adds the planned cells to sweep.json and runs the unfinished ones among `runs`."""
    args, shared, _, out, load = work
    todo = _planned(work, planned, runs)
    place = cloud.address(out)
    print(f"{len(runs)} {what} in {place}, {len(runs) - len(todo)} of them done", flush=True)
    if args.workers:
        results = run_in_workers(todo, out, shared, args.workers)
    else:
        groups = alike(todo, out) if args.together else [[run] for run in todo]
        results = run_here(groups, out, load, shared.log)
    follow(results, len(todo), len(runs), out)


def _planned(work, planned, runs):
    """Adds the planned cells to sweep.json; returns the unfinished ones among `runs`, checked."""
    _, shared, _, out, load = work
    for run in runs:
        check_cell(run, out / run.name)
    todo = [run for run in runs if not done(run, out / run.name)]
    lock.check_free([out / run.name for run in todo])
    check(todo, load)
    with lock.planning(out):
        others = check_folder(shared, planned, out)  # includes the cells of other shares
        workdir.remove_temporary(out)
        write_plan(others, planned, out)
    return todo


def _search(work, contenders):
    """Runs the draws of this share, each chosen by the results of all earlier ones.

    Returns the contenders with all draws, after those of all contenders have been made: shares that
    are at different contenders do not wait for each other.
    """
    args, shared, search, out, load = work
    check([each.cell for each in contenders], load)
    _planned(work, {}, [])  # makes the folder that of a sweep
    studies = [sweep_study.begin(each, search, shared, out, args.share) for each in contenders]
    for study in studies:
        interrupted, new = sweep_study.left(study)
        todo, name = len(interrupted) + new, study.contender.cell.name
        print(f"{name}: {todo} of {search.draws} draws to run in {out}", flush=True)
        ends = sweep_study.play(study, functools.partial(_run_draws, work))
        follow(ends, todo, todo, out)
    return list(map(sweep_study.searched, studies))


def _run_draws(work, draws, watch):
    """Runs draws, each taken when there is room for it."""
    args, shared, _, out, load = work
    planned = _added(work, draws)
    if args.workers:
        return run_in_workers(planned, out, shared, args.workers)
    return run_here(([draw] for draw in planned), out, load, shared.log, watch)


def _added(work, draws):
    """Yields draws, each after it has been added to the plan."""
    for draw in draws:
        _planned(work, {draw.name: draw}, [draw])
        yield draw


def _tune(work, contenders):
    """Runs the draws that are known and returns the best one of each contender, by its name."""
    _, shared, search, out, load = work
    all_seeds = [
        draw._replace(seeds=each.cell.seeds) for each in contenders for draw in each.draws[:1]
    ]
    check(all_seeds, load)  # so that a mistake in the final cells shows before any draw runs
    draws = {draw.name: draw for each in contenders for draw in each.draws}
    if search.by == "random":
        _carry_out(work, draws, list(draws.values()), "draws")
    best = {}
    for each in contenders:
        name = each.cell.name
        if each.missing:
            print(
                f"{name}: {each.missing} of {search.draws} draws are not made yet; run the other"
                " shares, then repeat this command"
            )
        elif left := sweep_tuning.waiting(each, out):
            print(f"{name}: no draw is chosen, because {left} of {len(each.draws)} draws failed")
        elif (cell := sweep_tuning.chosen(each, out, shared, search)) is None:
            print(f"{name}: no draw is chosen, because all {len(each.draws)} draws diverged")
        else:
            best[cell.name] = cell
            print(f"{cell.name}: the best of {search_cost(cell.note['tuned'])}")
    return best


def _parse(argv):
    argv, overrides = split_overrides(argv)
    args = parse(_parser(), argv[1:])
    cloud.check("--out", args.out)
    for flag, example in (("config", "configs/quickstart.py"), ("out", "runs/sweep")):
        if not getattr(args, flag):
            raise BadInput(f"--{flag} is missing; for example --{flag}={example}")
    _check_together(args)
    path, methods = _methods(args)
    seeds = parse_seeds(args.seeds)
    loggers.find(args.log)
    shared = Shared(path, overrides, seeds, args.compilation_cache, args.log, args.trust)
    search = None
    if args.tune is not None:
        search = sweep_tuning.parse(args.tune, args.on or "validation", args.range)
        _check_study(args, search)
    return args, methods, shared, search


def _check_together(args):
    """Raises BadInput for flags that cannot be combined."""
    if args.workers and args.together:
        raise BadInput("--together runs cells in one process, --workers in many; drop one of them")
    if args.workers and (cloud.split(args.out) or "")[:1] == ("memory",):
        raise BadInput(
            "--workers needs an --out that other processes can read; memory:// exists only in"
            " this process"
        )
    if not 0 <= args.workers <= MOST_WORKERS:
        raise BadInput(f"--workers must be from 0 to {MOST_WORKERS}, got {quoted(args.workers)}")
    for other in ("on", "range"):
        if args.tune is None and getattr(args, other) not in (None, []):
            raise BadInput(f"--{other} needs --tune, which is missing")


def _check_study(args, search):
    """Raises BadInput if the search needs Optuna, and cannot have it."""
    if search.by == "random":
        return
    sweep_study.check()
    if args.together:
        raise BadInput(f"--tune={search} chooses one draw after another; drop --together")
    if cloud.split(args.out):
        raise BadInput(f"--tune={search} needs an --out that is not in the cloud, for its journal")


def _parser():
    parser = make_parser("--config", "--out", "--methods", "--seeds", "--tune", "--on")
    for flag in ("--grid", "--range"):
        parser.add_argument(flag, action="append", default=[])
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--nocompilation_cache", action="store_false", dest="compilation_cache")
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--log", default="")
    return parser


def _methods(args):
    """The path of the config file, and the methods: those of --methods, or the one of --config."""
    path, of_config = split(args.config)
    methods = [of_config] if args.methods is None else args.methods.split(",")
    if args.methods is not None and (of_config or not all(methods)):
        named = f"--config={cut(args.config, 80)} and --methods={cut(args.methods, 80)}"
        raise BadInput(f"{named}: name each method once, for example --methods=fedavg,fedprox")
    return path, methods


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv)
