"""Many runs from one command: every method at every point of a grid.

python -m fedjax_lab.sweep --config=configs/X.py --out=DIR [--methods=fedavg,fedprox]
                           [--grid=method.mu=0.01,0.1] [--grid=partition.alpha=0.1,0.5]
                           [--tune=random:20 [--on=validation] [--range=method.mu=log:0.001,1]]
                           [--seeds=0,1,2] [--until=ci:0.5 [--baseline=fedavg] [--max_seeds=20]]
                           [--workers=N | --together] [--share=I/N] [--log=wandb,mlflow]
                           [--nocompilation_cache] [--config.run.rounds=20 ...]
python -m fedjax_lab.sweep --status=DIR

A cell is a method at a grid point, with all seeds in one run. Its folder DIR/CELL is that of a run
of fedjax_lab.main; DIR/sweep.json is the plan. A method without a setting that is in the grid for
another one has one cell for all its values. The same command goes on with what is not finished;
other methods and grids add cells, if all else is the same, and all cells together may get more
--seeds or rounds, of which only the new ones are run. A cell that failed has error.txt and is tried
again; one that diverged has it too and is not.

Cells run one after another in this process, or N at a time in processes of their own: on a CPU
each with its share of the cores, on GPUs each on one of them. With --together new cells that differ
in numbers of `method` and `local` alone run as one vmapped computation; where that fails (memory,
a number that a method does not let be traced, a cell that diverges) they go on one by one.

With --log (see fedjax_lab.main) each cell is one run of the service. All of them are in one group
of Weights & Biases, or one experiment of MLflow, with the name of DIR.

With --tune=random:20 the settings of each method are searched for first, with as many draws for
every method: 20 at each point of the grid. Drawn are local.lr and the settings for which the
method's file declares RANGES, unless --config.KEY or --grid gives a value. --range declares another
range or one more: log:LOW,HIGH (log-uniform), uniform:LOW,HIGH or choice:A,B,C. Methods that share
a setting get the same quantiles of its range; random:20:7 takes other random numbers. A draw is a
run of the first seed in DIR/draws. The one with the highest accuracy on validation examples, in the
round that is best by them, becomes the method's cell and is run with all seeds; --on=test chooses
by the test accuracy after the last round, as some papers do. sweep.json and reports say what each
search has cost.

With --until=ci:0.5 cells get more seeds, as many at a time as they began with, until the difference
to the baseline in accuracy after the last round is known within 0.5 points, or they have
--max_seeds. --baseline is a method, whose cell at the same point of the grid is compared with, or a
cell. Differences are taken seed by seed, so the baseline gets the same seeds. The interval at the
level of 95 % is one of a confidence sequence, which stays valid however often one looks at it (see
running/confidence.py); it needs at least four seeds.

--status tells which cells are done, running, waiting or have failed, and when the sweep may end. It
only reads.

DIR may be in the cloud (gs://BUCKET/FOLDER, see fedjax_lab.main), where a sweep has no lock: start
it once, or with --share. Where two commands run the same cell, the one that began first gives it
up.

With --share=I/N only every N-th cell is run, from number I on (0 is the first), so that N commands,
on hosts that all see DIR, share a sweep. With --tune a cell comes with all of its draws. --until
needs all cells: add it, without --share, when the shares are done.

Exit codes: 0 done; 1 a cell failed, or the machine did (disk, memory); 2 a usage, config or data
error, in one line and before anything is run; 130 interrupted, the state of the cells under way
saved.
"""

if __name__ == "__main__":  # before the imports, which an interrupt may meet
    from fedjax_lab import command

    command.begin()

import argparse
import contextlib
import gc
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import ml_collections
from tqdm import tqdm

from fedjax_lab import command, experiment, parallel
from fedjax_lab.analysis.sweeps import told
from fedjax_lab.config_files import split
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput, cut, parse, quoted
from fedjax_lab.main import parse_seeds, split_overrides
from fedjax_lab.running import (
    cloud,
    compilation_cache,
    confidence,
    lock,
    loggers,
    runner,
    sweep_seeds,
    sweep_status,
    sweep_tuning,
    workdir,
)
from fedjax_lab.running.sweep_folder import (
    DIVERGED,
    Outcome,
    check_cell,
    check_folder,
    done,
    make_ready,
    record,
    shown,
    tail,
    write_plan,
)
from fedjax_lab.running.sweep_plan import Cell, Shared, parse_grid, plan, share_of
from fedjax_lab.running.sweep_seeds import Goal, Pair
from fedjax_lab.running.sweep_status import aligned
from fedjax_lab.running.sweep_tuning import Search
from fedjax_lab.running.sweep_workers import run_in_workers

MOST_WORKERS = 1000


# Running.


def load_once() -> Callable[[ml_collections.ConfigDict], Dataset]:
    """experiment.load_data that loads once for successive configs with the same data."""
    last = [None, None]

    def load(config):
        if config.data != last[0]:
            last[:] = config.data, experiment.load_data(config.data)
        return last[1]

    return load


def check(cells: Iterable[Cell], load: Callable[..., Dataset]) -> None:
    """BadInput, which names the cell, where one cannot be built from its config."""
    for cell in cells:
        try:
            experiment.build(cell.config, cell.seeds, load(cell.config))
        except BadInput as error:
            raise BadInput(f"{cell.name}: {error}") from error
        except (Exception, SystemExit):
            continue  # it comes again when the cell is run, and is recorded


def run_here(
    groups: Iterable[list[Cell]], out: Path, load: Callable[..., Dataset], log: str = ""
) -> Generator[tuple[Cell, Outcome], None, None]:
    """Runs cells in this process, each group as one computation or else one after another."""
    for group in groups:
        if len(group) > 1:
            _try_together(group, out, load, log)
            gc.collect()
        for cell in group:
            folder = out / cell.name
            yield cell, done(cell, folder) or _run_one(cell, make_ready(folder), load, log)
            gc.collect()  # the devices' memory


def alike(cells: Iterable[Cell], out: Path) -> list[list[Cell]]:
    """Groups of new cells that differ in numbers of `method` and `local` alone."""
    groups = {}
    for cell in cells:
        if (out / cell.name / "config.json").exists():  # it goes on from a round of its own
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
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        tqdm.write(f"not together but one by one: {group[0].name} ...: {reason:.200}")


def _run_one(cell, folder, load, log):
    try:
        job = experiment.build(cell.config, cell.seeds, load(cell.config))
        is_begun = (folder / "config.json").exists()
        runner.run(job, folder, resume=is_begun, quiet=True, log=log)
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


def train(cells: Sequence[Cell], out: Path) -> int:
    """Runs those of the cells that have not ended, in folders of `out`.

    0, or 1 where one failed or diverged. BadInput where a folder holds another run.
    """
    for cell in cells:
        check_cell(cell, out / cell.name)
    with lock.owned_share(out):
        todo = [cell for cell in cells if not done(cell, out / cell.name)]
        lock.check_free([out / cell.name for cell in todo])
        count = len(cells) - len(todo)
        print(f"{len(cells)} runs in {cloud.address(out)}, {count} of them done", flush=True)
        compilation_cache.enable()
        parallel.check_devices()
        results = run_here([[cell] for cell in todo], out, load_once())
        follow(results, len(todo), len(cells), out)
    outcomes = [done(cell, out / cell.name) for cell in cells]
    return int(any(outcome is None or outcome.code for outcome in outcomes))


# What a person sees.


def follow(
    results: Generator[tuple[Cell, Outcome], None, None], todo: int, total: int, out: Path
) -> None:
    """Records how each cell ends and tells it, with the time left for `todo` of `total` cells."""
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
    """One line per cell: method, values of these keys of the config, accuracy."""
    rows = [["method", *keys, "accuracy, %"]]
    for name, cell in cells.items():
        values = [cell.grid.get(key, "") for key in keys]
        rows.append([cell.config.method.name, *values, shown(out / name)])
    return aligned(rows)


def differences(pairs: Sequence[Pair], goal: Goal, out: Path) -> str:
    """One line per pair: the difference in points, and whether it is clear."""
    level = f"{confidence.LEVEL:.0%} interval"
    rows = [["cell", "minus", "seeds", "difference", level, "state"]]
    for pair in pairs:
        of = sweep_seeds.compare(pair, goal, out)
        mean = "" if of.mean is None else f"{of.mean:+.2f}"
        half = f"+- {of.half_width:.2f}" if math.isfinite(of.half_width) else "too few seeds"
        rows.append([pair.cell.name, pair.baseline.name, str(of.seeds), mean, half, of.state])
    return aligned(rows)


# The command line.


class Request(NamedTuple):
    """What a command line asks for."""

    args: argparse.Namespace
    methods: list[str]
    shared: Shared
    search: Search | None  # for the settings of each method
    goal: Goal | None  # until which seeds are added


class Work(NamedTuple):
    """A sweep under way."""

    request: Request
    out: Path
    load: Callable[[ml_collections.ConfigDict], Dataset]


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    if any(text.partition("=")[0] == "--status" for text in argv[1:]):
        return _show_status(argv[1:])
    request = _parse(argv)
    args, shared, search, goal = request.args, request.shared, request.search, request.goal
    cells = plan(shared, request.methods, parse_grid(args.grid))
    chosen = share_of(cells, args.share)
    pairs = sweep_seeds.pairs(list(cells.values()), goal) if goal else []
    contenders = sweep_tuning.contenders(cells.values(), shared, search) if search else []
    contenders = [each for each in contenders if each.cell.name in chosen]
    with cloud.staged(args.out) as out, lock.owned_share(out, args.share):  # before data are loaded
        work = Work(request, out, load_once())
        check_folder(shared, {} if search else cells, out)
        _use_devices(args)
        if search is None:
            return _run_and_show(work, cells, chosen, pairs)
        best = _tune(work, contenders)
        pairs = [p for p in pairs if {p.cell.name, p.baseline.name} <= best.keys()]
        pairs = [Pair(best[p.cell.name], best[p.baseline.name]) for p in pairs]
        tuned = {cell.name: cell for cell in best.values()}
        return _run_and_show(work, tuned, tuned, pairs) or int(len(best) < len(contenders))


def _show_status(argv):
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--status")
    place = parse(parser, argv).status
    cloud.check("--status", place)
    with cloud.read([place]) as (folder,):
        print(cloud.named(sweep_status.show(folder)))
    return 0


def _use_devices(args):
    if args.workers:
        jax.config.update("jax_platforms", "cpu")  # the devices are the workers'
    if args.compilation_cache:
        compilation_cache.enable()
    parallel.check_devices()


def _run_and_show(work, cells, chosen, pairs):
    """Runs the chosen ones of the cells, then more seeds of pairs; shows what came of them."""
    request, out = work.request, work.out
    if request.goal:
        until = {"until": str(request.goal)}
        cells = {name: cell._replace(note={**cell.note, **until}) for name, cell in cells.items()}
    _carry_out(work, cells, list(chosen.values()), "cells")
    failed = {name for name, cell in chosen.items() if not done(cell, out / name)}
    pairs_left = [p for p in pairs if failed.isdisjoint((p.cell.name, p.baseline.name))]
    is_whole = _add_seeds(work, pairs_left) and not failed
    keys = dict.fromkeys(key for cell in chosen.values() for key in cell.grid)
    print(f"\nafter the last round\n{table(chosen, list(keys), out)}")
    if pairs:
        print(f"\nuntil {request.goal}\n{differences(pairs, request.goal, out)}")
    print(f"\nresults: {cloud.address(out)}")
    return int(not is_whole)


def _carry_out(work, planned, runs, what):
    """Plans cells and runs those of `runs` that have not ended."""
    (args, _, shared, *_), out, load = work
    runs = [sweep_seeds.of_all(run, out) for run in runs]
    for run in runs:
        check_cell(run, out / run.name)
    todo = [run for run in runs if not done(run, out / run.name)]
    lock.check_free([out / run.name for run in todo])
    check(todo, load)
    with lock.planning(out):
        others = check_folder(shared, planned, out)  # with the cells of other shares
        workdir.remove_temporary(out)
        write_plan(others, planned, out)
    place = cloud.address(out)
    print(f"{len(runs)} {what} in {place}, {len(runs) - len(todo)} of them done", flush=True)
    if args.workers:
        results = run_in_workers(todo, out, shared, args.workers)
    else:
        groups = alike(todo, out) if args.together else [[run] for run in todo]
        results = run_here(groups, out, load, shared.log)
    follow(results, len(todo), len(runs), out)


def _tune(work, contenders):
    """Runs all draws; gives the cell of each contender's best one by the name of its own cell."""
    (_, _, shared, search, _), out, load = work
    all_seeds = [each.draws[0]._replace(seeds=each.cell.seeds) for each in contenders]
    check(all_seeds, load)  # what is run in the end fails before anything is run
    draws = {draw.name: draw for each in contenders for draw in each.draws}
    _carry_out(work, draws, list(draws.values()), "draws")
    best = {}
    for each in contenders:
        name = each.cell.name
        if left := sweep_tuning.waiting(each, out):
            print(f"{name}: none is chosen, because {left} of {len(each.draws)} draws have failed")
        elif (cell := sweep_tuning.chosen(each, out, shared, search)) is None:
            print(f"{name}: none is chosen, because all {len(each.draws)} draws have diverged")
        else:
            best[name] = cell
            print(f"{cell.name}: the best of {told(cell.note['tuned'])}")
    return best


def _add_seeds(work, pairs):
    """Runs more seeds until all pairs are clear or have --max_seeds; whether all of that went well.

    A cell that fails is tried once, and what is compared with it is left alone.
    """
    everything = pairs
    while runs := sweep_seeds.next_runs(pairs, work.request.goal, work.out):
        _carry_out(work, {}, runs, "cells with more seeds")
        failed = {run.name for run in runs if not done(run, work.out / run.name)}
        pairs = [p for p in pairs if failed.isdisjoint((p.cell.name, p.baseline.name))]
    return pairs == everything


def _parse(argv):
    argv, overrides = split_overrides(argv)
    args = parse(_parser(), argv[1:])
    cloud.check("--out", args.out)
    for flag, example in (("config", "configs/quickstart.py"), ("out", "runs/sweep")):
        if not getattr(args, flag):
            raise BadInput(f"--{flag} is missing; for example --{flag}={example}")
    _check_together(args)
    path, methods = _methods(args)
    seeds = parse_seeds(None if args.seeds is None else args.seeds.split(","))
    loggers.find(args.log)
    shared = Shared(path, overrides, seeds, args.compilation_cache, args.log)
    search = goal = None
    if args.tune is not None:
        search = sweep_tuning.parse(args.tune, args.on or "validation", args.range)
    if args.until is not None:
        most = sweep_seeds.MOST_SEEDS if args.max_seeds is None else args.max_seeds
        goal = sweep_seeds.parse(args.until, args.baseline or "fedavg", most)
    return Request(args, methods, shared, search, goal)


def _check_together(args):
    """BadInput for flags that do not go together."""
    if args.workers and args.together:
        raise BadInput("--together runs cells in one process, --workers in many; drop one")
    if args.workers and (cloud.split(args.out) or "")[:1] == ("memory",):
        raise BadInput(
            "--workers needs an --out that other processes see; memory:// is of this one"
        )
    if not 0 <= args.workers <= MOST_WORKERS:
        raise BadInput(f"--workers must be from 0 to {MOST_WORKERS}, got {quoted(args.workers)}")
    if args.until and args.share != "0/1":
        raise BadInput(
            "--until decides by all cells of a sweep, --share runs a part of them: drop --until,"
            " and when all shares are done add it to the command without --share"
        )
    needs = {"tune": ("on", "range"), "until": ("baseline", "max_seeds")}
    for flag, others in needs.items():
        for other in others:
            if getattr(args, flag) is None and getattr(args, other) not in (None, []):
                raise BadInput(f"--{other} says more about --{flag}, which is not given")


def _parser():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--config", "--out", "--methods", "--seeds"):
        parser.add_argument(flag)
    for flag in ("--tune", "--on", "--until", "--baseline"):
        parser.add_argument(flag)
    for flag in ("--grid", "--range"):
        parser.add_argument(flag, action="append", default=[])
    parser.add_argument("--max_seeds", type=int)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--nocompilation_cache", action="store_false", dest="compilation_cache")
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--log", default="")
    return parser


def _methods(args):
    """The path of the config file, and the methods: one that the path names, or --methods."""
    path, of_config = split(args.config)
    methods = [of_config] if args.methods is None else args.methods.split(",")
    if args.methods is not None and (of_config or not all(methods)):
        named = f"--config={cut(args.config, 80)} and --methods={cut(args.methods, 80)}"
        raise BadInput(f"{named}: name each method once, for example --methods=fedavg,fedprox")
    return path, methods


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv)
