"""Many runs from one command: every method at every point of a grid.

python -m fedjax_lab.sweep --config=configs/X.py --out=DIR [--methods=fedavg,fedprox]
                           [--grid=method.mu=0.01,0.1] [--grid=partition.alpha=0.1,0.5]
                           [--seeds=0,1,2] [--workers=N | --together] [--share=I/N]
                           [--nocompilation_cache] [--config.run.rounds=20 ...]

A cell is a method at a grid point, with all seeds in one run. Its folder DIR/CELL is that of a run
of fedjax_lab.main; DIR/sweep.json is the plan. A method without a setting that is in the grid for
another one has one cell for all its values. The same command goes on with what is not finished;
other methods and grids add cells, if all else is the same. A cell that failed has error.txt and is
tried again; one that diverged has it too and is not.

Cells run one after another in this process, or N at a time in processes of their own: on a CPU
each with its share of the cores, on GPUs each on one of them. With --together new cells that differ
in numbers of `method` and `local` alone run as one vmapped computation; where that fails (memory,
a number that a method does not let be traced, a cell that diverges) they go on one by one.

With --share=I/N only every N-th cell is run, from number I on (0 is the first), so that N commands,
on hosts that all see DIR, share a sweep.

Exit codes: 0 done; 1 a cell failed, or the machine did (disk, memory); 2 a usage, config or data
error, in one line and before anything is run; 130 interrupted, the state of the cells under way
saved.
"""

if __name__ == "__main__":  # before the imports, which an interrupt may meet
    from fedjax_lab import command

    command.begin()

import argparse
import collections
import contextlib
import gc
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import ml_collections
from tqdm import tqdm

from fedjax_lab import (
    command,
    compilation_cache,
    experiment,
    files,
    interrupts,
    lock,
    metrics,
    parallel,
    runner,
    workdir,
)
from fedjax_lab.config import load_config, resolve
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput, check_path, cut, nearest, parse, quoted
from fedjax_lab.main import parse_seeds, split_overrides

DIVERGED = 3  # the exit code of main
TAIL = 20  # lines of what a failed cell said
POLL_SECONDS = 0.2
STOPPING = "stopping the cells under way, which save their state; once more to stop at once"
MOST_WORKERS = 1000
LONGEST_NAME = 255  # characters of a folder's name, which file systems bound


class Shared(NamedTuple):
    """What all cells of a sweep have in common."""

    path: str  # of the config file
    overrides: Sequence[tuple[str, str]] = ()  # dotted key and text
    seeds: list[int] | None = None  # None: config.run.seed
    compilation_cache: bool = True  # keep compiled programs on disk


class Cell(NamedTuple):
    """One run."""

    name: str  # of its folder
    method: str  # argument of the config file; empty: its own method
    grid: dict[str, str]  # text by dotted key
    config: ml_collections.ConfigDict
    seeds: list[int]

    @property
    def saved(self) -> dict:
        """What its config.json holds."""
        return workdir.saved_config(self.config, self.seeds)


class Outcome(NamedTuple):
    """How a cell ended: the exit code of main, and what was said if that is not 0."""

    code: int
    said: str = ""


# The plan.


def parse_grid(texts: Iterable[str]) -> dict[str, list[str]]:
    """{key: texts of its values} of KEY=VALUE,VALUE; commas in brackets separate nothing."""
    grid = {}
    for text in texts:
        key, _, values = text.removeprefix("config.").partition("=")
        values = re.split(r",(?![^(\[]*[)\]])", values)
        if "." not in key or not all(values):
            example = "--grid=local.lr=0.01,0.1"
            raise BadInput(
                f"--grid={cut(text, 80)} is not SECTION.KEY=VALUE,VALUE; for example {example}"
            )
        if key in grid:
            raise BadInput(f"--grid={cut(key, 80)} is given twice; name all its values in one")
        grid[key] = values
    return grid


def plan(shared: Shared, methods: list[str], grid: dict[str, list[str]]) -> dict[str, Cell]:
    """All cells by name, method after method, with checked configs."""
    _check_keys(grid, shared.overrides)
    cells, known = {}, set()
    for method in methods:
        for texts in itertools.product(*grid.values()):
            point = dict(zip(grid, texts, strict=True))
            own = _method_keys(shared, method, point)
            known |= own
            point = {k: text for k, text in point.items() if not _of_method(k) or k in own}
            cell = make_cell(shared, method, point)
            cells.setdefault(cell.name, cell)
    for key in grid:
        if not any(key in cell.grid for cell in cells.values()):
            setting = f"--grid={cut(key, 80)}"
            raise BadInput(f"{setting}: no method here has that setting; {nearest(key, known)}")
    return cells


def share_of(cells: dict[str, Cell], text: str) -> dict[str, Cell]:
    """Every N-th cell from number I on, of I/N. The shares of all I < N are the whole."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise BadInput(f"--share={cut(text, 80)} is not I/N with I below N, such as --share=0/4")
    first, step = map(int, match.groups())
    return dict(list(cells.items())[first::step])


def make_cell(shared: Shared, method: str, point: dict[str, str]) -> Cell:
    """The cell of a grid point, all of whose settings the method has."""
    _check_keys(point, shared.overrides)
    loaded = load_config(f"{shared.path}:{method}")
    config = resolve(loaded, [*shared.overrides, *point.items()])
    parts = [config.method.name]
    for key in point:
        section, _, rest = key.partition(".")
        value = str(config[section][rest]).replace(" ", "")
        value = urllib.parse.quote(value, safe="+()[],")  # a folder's name
        parts.append(f"{rest if _of_method(key) else key}={value}")
    name = ",".join(parts)
    if len(name) > LONGEST_NAME:
        raise BadInput(f"the values of --grid make too long a folder name: {quoted(name)}")
    seeds = [config.run.seed] if shared.seeds is None else shared.seeds
    return Cell(name, method, point, config, seeds)


def _check_keys(grid, overrides):
    given = {key for key, _ in overrides}
    flags = {"method.name": "--methods=fedavg,fedprox", "run.seed": "--seeds=0,1,2"}
    for key in grid:
        if key in flags:
            raise BadInput(f"--grid={key} is no axis of a sweep; use {flags[key]}")
        if key in given:
            raise BadInput(f"config.{key} is both in the grid and given by --config.{key}")
    if "method.name" in given:
        raise BadInput(f"--config.method.name has no place in a sweep; use {flags['method.name']}")


def _of_method(key):
    return key.startswith("method.")


def _method_keys(shared, method, point):
    """The keys that the method has at a grid point; a base method brings its own."""
    loaded = load_config(f"{shared.path}:{method}")
    pairs = [*shared.overrides, *((k, text) for k, text in point.items() if not _of_method(k))]
    known = resolve(loaded, pairs).method
    if "base" in known and "method.base" in point:
        known = resolve(loaded, [*pairs, ("method.base", point["method.base"])]).method
    return {f"method.{key}" for key in known if key != "name"}


# The folder.


def check_folder(shared: Shared, cells: dict[str, Cell], out: Path) -> dict:
    """The cells that `out` has planned already, as its sweep.json holds them.

    BadInput where the folder holds something else, or a cell that by today's config file,
    overrides and seeds would be another run.
    """
    path, planned = out / "sweep.json", {}
    # Listed once: commands that share a sweep write sweep.json, and then their cells.
    names = {p.name for p in out.iterdir() if p.name[0] != "."} if out.is_dir() else set()
    if path.name in names:
        planned = files.read_json(path, files.PLAN)["cells"]
    elif not all(name.startswith(path.name) for name in names) or out.is_file():
        raise BadInput(f"{out} holds something else than a sweep; name another folder with --out")
    for name, old in planned.items():
        try:
            today = make_cell(shared, old["method"], old["grid"])
        except BadInput as error:
            raise BadInput(f"cell {quoted(name)} of {path}: {error}") from error
        metrics.check_same(out / name, old["config"], today.saved)
    for name, cell in cells.items():
        check_cell(cell, out / name)
    return planned


def check_cell(cell: Cell, folder: Path) -> None:
    """BadInput where the cell's folder holds another run, or cannot hold its files.

    A run that is damaged is let through: the cell alone will fail, and say why.
    """
    if (folder / "error.txt").is_dir():
        raise BadInput(f"{folder / 'error.txt'} is a folder; remove it")
    with contextlib.suppress(files.Damaged):
        if (folder / "config.json").exists():
            metrics.check_same_config(folder / "config.json", cell.saved)


def write_plan(planned: dict, cells: dict[str, Cell], out: Path) -> None:
    """sweep.json: the cells that were planned and the new ones, with their whole configs."""
    metrics.make_folder(out)
    new = {c.name: {"method": c.method, "grid": c.grid, "config": c.saved} for c in cells.values()}
    metrics.write_json(out / "sweep.json", {"cells": planned | new})


def ended(folder: Path) -> Outcome | None:
    """How a cell has ended that is not run again; None for one that is to be run.

    One whose config.json or summary.json is damaged has not ended: its run says what is wrong.
    """
    try:
        files.read_json(folder / "config.json", files.CONFIG)
        summary = files.read_json(folder / "summary.json", files.FINISHED)
    except files.Damaged:
        return None
    if summary is not None:
        return Outcome(DIVERGED if "diverged" in summary else 0)
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
        except Exception:
            continue  # it comes again when the cell is run, and is recorded


def run_here(
    groups: Iterable[list[Cell]], out: Path, load: Callable[..., Dataset]
) -> Iterator[tuple[Cell, Outcome]]:
    """Runs cells in this process, each group as one computation or else one after another."""
    for group in groups:
        if len(group) > 1:
            _try_together(group, out, load)
            gc.collect()
        for cell in group:
            folder = out / cell.name
            yield cell, ended(folder) or _run_one(cell, _ready(folder), load)
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


def _try_together(group, out, load):
    try:
        parts = [experiment.build(c.config, c.seeds, load(c.config)) for c in group]
        runner.run_together(parts, [_ready(out / c.name) for c in group])
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        tqdm.write(f"not together but one by one: {group[0].name} ...: {reason:.200}")


def _run_one(cell, folder, load):
    try:
        job = experiment.build(cell.config, cell.seeds, load(cell.config))
        runner.run(job, folder, resume=(folder / "config.json").exists(), quiet=True)
    except BadInput as error:
        return Outcome(2, str(error))
    except runner.Diverged as error:
        return Outcome(DIVERGED, str(error))
    except Exception as error:
        return Outcome(1, command.machine_failure(error) or _tail(traceback.format_exc()))
    return Outcome(0)


def _ready(folder):
    (folder / "error.txt").unlink(missing_ok=True)
    return folder


def _tail(text):
    return "\n".join(text.strip().splitlines()[-TAIL:])


class _Worker(NamedTuple):
    """A place for one process at a time."""

    environment: dict[str, str]
    cores: set[int] | None  # None: all


def run_in_workers(
    cells: Iterable[Cell], out: Path, shared: Shared, count: int
) -> Iterator[tuple[Cell, Outcome]]:
    """Runs cells as commands, `count` at a time. Closed early, it lets them save their state."""
    waiting, free, running = collections.deque(cells), _workers(count), {}
    with interrupts.delayed(STOPPING) as stop:
        try:
            while waiting or running:
                if stop.is_set():
                    raise KeyboardInterrupt
                while waiting and free:
                    cell, worker = waiting.popleft(), free.pop(0)
                    said = tempfile.TemporaryFile("w+")
                    process = _start(_command(cell, _ready(out / cell.name), shared), worker, said)
                    interrupts.children.add(process)
                    running[process] = cell, worker, said
                time.sleep(POLL_SECONDS)
                for process in [p for p in running if p.poll() is not None]:
                    interrupts.children.discard(process)
                    cell, worker, said = running.pop(process)
                    free.append(worker)
                    said.seek(0)
                    yield cell, Outcome(process.returncode, _tail(said.read()))
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()
                interrupts.children.discard(process)


def _command(cell, folder, shared):
    words = [sys.executable, "-m", "fedjax_lab.main", f"--config={shared.path}:{cell.method}"]
    words += [f"--workdir={folder}", f"--seeds={','.join(map(str, cell.seeds))}"]
    words += ["--nocompilation_cache"] * (not shared.compilation_cache)
    settings = [*shared.overrides, *cell.grid.items()]
    words += [f"--config.{key}={text}" for key, text in settings]
    return words + ["--resume"] * (folder / "config.json").exists()


def _start(command, worker, said):
    """A process in a group of its own: Ctrl-C reaches it once, through this one."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": said}
    options |= {"env": {**os.environ, **worker.environment}, "process_group": 0}
    if worker.cores is None:
        return subprocess.Popen(command, **options)
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, worker.cores)  # inherited
    try:
        return subprocess.Popen(command, **options)
    finally:
        os.sched_setaffinity(0, mine)


def _workers(count):
    backend, devices = _devices()
    environment = {}
    if backend == "cpu":
        if not hasattr(os, "sched_getaffinity"):
            return [_Worker(environment, None)] * count
        cores = sorted(os.sched_getaffinity(0))
        shares = [set(cores[i % len(cores) :: count]) for i in range(count)]
        return [_Worker(environment, share) for share in shares]
    if count > devices:
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several on one device
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = visible.split(",") if visible else list(map(str, range(devices)))
    return [
        _Worker({**environment, "CUDA_VISIBLE_DEVICES": visible[i % devices]}, None)
        for i in range(count)
    ]


def _devices():
    """Their kind and number, asked of a process that gives them back."""
    ask = "import jax; print(jax.default_backend(), jax.local_device_count())"
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    if asked.returncode:
        reason = asked.stderr.strip().splitlines()[-1:]
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise BadInput(f"JAX_PLATFORMS={platforms}: jax finds no device: {' '.join(reason)}")
    backend, devices = asked.stdout.split()
    return backend, int(devices)


# What a person sees.


def follow(results: Iterator[tuple[Cell, Outcome]], todo: int, total: int, out: Path) -> None:
    """Records how each cell ends and tells it, with the time left for `todo` of `total` cells."""
    began, layout = time.monotonic(), "{desc}{n_fmt}/{total_fmt} |{bar}| {remaining} left"
    hidden = not sys.stderr.isatty()
    bar = tqdm(total=total, initial=total - todo, bar_format=layout, disable=hidden)
    with contextlib.closing(results), bar:
        for i, (cell, outcome) in enumerate(results, 1):
            record(outcome, out / cell.name)
            took = time.monotonic() - began
            left = tqdm.format_interval(took / i * (todo - i))
            done = f"{total - todo + i}/{total}"
            bar.write(f"{done}  {cell.name}  {shown(out / cell.name)}  {left} left")
            sys.stdout.flush()
            bar.update()


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


def table(cells: dict[str, Cell], keys: list[str], out: Path) -> str:
    """One line per cell: method, values of the grid's keys, accuracy."""
    rows = [["method", *keys, "accuracy, %"]]
    for name, cell in cells.items():
        values = [cell.grid.get(key, "") for key in keys]
        rows.append([cell.config.method.name, *values, shown(out / name)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


# The command line.


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    return command.call(_main, argv, "the same command continues")


def _main(argv):
    if {"--help", "-h"} & set(argv):
        print(__doc__)
        return 0
    args, methods, shared = _parse(argv)
    out = Path(args.out)
    grid = parse_grid(args.grid)
    cells = plan(shared, methods, grid)
    mine = share_of(cells, args.share)
    with lock.owned_share(out, args.share):  # before anything is loaded
        return _sweep(args, shared, cells, mine, list(grid))


def _sweep(args, shared, cells, mine, keys):
    out, load = Path(args.out), load_once()
    check_folder(shared, cells, out)
    todo = [cell for cell in mine.values() if not ended(out / cell.name)]
    lock.check_free([out / cell.name for cell in todo])
    if args.workers:
        jax.config.update("jax_platforms", "cpu")  # the devices are the workers'
    if args.compilation_cache:
        compilation_cache.enable()
    parallel.check_devices()
    check(todo, load)
    with lock.planning(out):
        planned = check_folder(shared, cells, out)  # with the cells of other shares
        workdir.remove_temporary(out)
        write_plan(planned, cells, out)
    print(f"{len(mine)} cells in {out}, {len(mine) - len(todo)} of them done", flush=True)
    if args.workers:
        results = run_in_workers(todo, out, shared, args.workers)
    else:
        groups = alike(todo, out) if args.together else [[cell] for cell in todo]
        results = run_here(groups, out, load)
    follow(results, len(todo), len(mine), out)
    print(f"\nafter the last round\n{table(mine, keys, out)}\n\nresults: {out}")
    return int(any(ended(out / name) is None for name in mine))


def _parse(argv):
    argv, overrides = split_overrides(argv)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--config", "--out", "--methods"):
        parser.add_argument(flag)
    parser.add_argument("--seeds")
    parser.add_argument("--grid", action="append", default=[])
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--nocompilation_cache", action="store_false", dest="compilation_cache")
    parser.add_argument("--share", default="0/1")
    args = parse(parser, argv[1:])
    check_path("--out", args.out)
    for flag, example in (("config", "configs/quickstart.py"), ("out", "runs/sweep")):
        if not getattr(args, flag):
            raise BadInput(f"--{flag} is missing; for example --{flag}={example}")
    if args.workers and args.together:
        raise BadInput("--together runs cells in one process, --workers in many; drop one")
    if not 0 <= args.workers <= MOST_WORKERS:
        raise BadInput(f"--workers must be from 0 to {MOST_WORKERS}, got {quoted(args.workers)}")
    path, _, own = args.config.partition(":")
    methods = [own] if args.methods is None else args.methods.split(",")
    if args.methods is not None and (own or not all(methods)):
        named = f"--config={cut(args.config, 80)} and --methods={cut(args.methods, 80)}"
        raise BadInput(f"{named}: name each method once, for example --methods=fedavg,fedprox")
    seeds = parse_seeds(None if args.seeds is None else args.seeds.split(","))
    return args, methods, Shared(path, overrides, seeds, args.compilation_cache)


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv)
