"""Many runs from one command: every method at every point of a grid.

python -m fedjax_lab.sweep --config=configs/X.py --out=DIR [--methods=fedavg,fedprox]
                           [--grid=method.mu=0.01,0.1] [--grid=partition.alpha=0.1,0.5]
                           [--seeds=0,1,2] [--workers=N | --together] [--share=I/N]
                           [--config.run.rounds=20 ...]

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

Exit codes: 0 done; 1 a cell failed; 2 a usage, config or data error, in one line and before
anything is run; 130 interrupted, the state of the cells under way saved.
"""

import argparse
import collections
import contextlib
import gc
import itertools
import json
import os
import re
import signal
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

from fedjax_lab import experiment, lock, metrics, runner, workdir
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput, nearest, refuse, tell
from fedjax_lab.main import parse_seeds, split_overrides, use_every_core

DIVERGED = 3  # the exit code of main
TAIL = 20  # lines of what a failed cell said
POLL_SECONDS = 0.2


class Shared(NamedTuple):
    """What all cells of a sweep have in common."""

    path: str  # of the config file
    overrides: Sequence[tuple[str, str]] = ()  # dotted key and text
    seeds: list[int] | None = None  # None: config.run.seed


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
            raise BadInput(f"--grid={text} is not SECTION.KEY=VALUE,VALUE; for example {example}")
        if key in grid:
            raise BadInput(f"--grid={key} is given twice; name all its values in one")
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
            raise BadInput(f"--grid={key}: no method here has that setting; {nearest(key, known)}")
    return cells


def share_of(cells: dict[str, Cell], text: str) -> dict[str, Cell]:
    """Every N-th cell from number I on, of I/N. The shares of all I < N are the whole."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise BadInput(f"--share={text} is not I/N with I below N, for example --share=0/4")
    first, step = map(int, match.groups())
    return dict(list(cells.items())[first::step])


def make_cell(shared: Shared, method: str, point: dict[str, str]) -> Cell:
    """The cell of a grid point, all of whose settings the method has."""
    _check_keys(point, shared.overrides)
    loaded = experiment.load_config(f"{shared.path}:{method}")
    config = experiment.resolve(loaded, [*shared.overrides, *point.items()])
    parts = [config.method.name]
    for key in point:
        section, _, rest = key.partition(".")
        value = str(config[section][rest]).replace(" ", "")
        value = urllib.parse.quote(value, safe="+()[],")  # a folder's name
        parts.append(f"{rest if _of_method(key) else key}={value}")
    seeds = [config.run.seed] if shared.seeds is None else shared.seeds
    return Cell(",".join(parts), method, point, config, seeds)


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
    loaded = experiment.load_config(f"{shared.path}:{method}")
    pairs = [*shared.overrides, *((k, text) for k, text in point.items() if not _of_method(k))]
    known = experiment.resolve(loaded, pairs).method
    if "base" in known and "method.base" in point:
        known = experiment.resolve(loaded, [*pairs, ("method.base", point["method.base"])]).method
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
        try:
            planned = json.loads(path.read_text())["cells"]
        except (json.JSONDecodeError, KeyError) as error:
            raise BadInput(f"{path} cannot be read: {error!r}") from error
    elif not all(name.startswith(path.name) for name in names) or out.is_file():
        raise BadInput(f"{out} holds something else than a sweep; name another folder with --out")
    for name, old in planned.items():
        today = make_cell(shared, old["method"], old["grid"])
        metrics.check_same(out / name, old["config"], today.saved)
    for name, cell in cells.items():
        if (out / name / "config.json").exists():
            metrics.check_same_config(out / name / "config.json", cell.saved)
    return planned


def write_plan(planned: dict, cells: dict[str, Cell], out: Path) -> None:
    """sweep.json: the cells that were planned and the new ones, with their whole configs."""
    metrics.make_folder(out)
    new = {c.name: {"method": c.method, "grid": c.grid, "config": c.saved} for c in cells.values()}
    metrics.write_json(out / "sweep.json", {"cells": planned | new})


def ended(folder: Path) -> Outcome | None:
    """How a cell has ended that is not run again; None for one that is to be run."""
    if (folder / "summary.json").exists():
        summary = json.loads((folder / "summary.json").read_text())
        return Outcome(DIVERGED if "diverged" in summary else 0)
    failed = failure(folder)
    return failed if failed and failed.code == DIVERGED else None


def failure(folder: Path) -> Outcome | None:
    """What error.txt records."""
    path = folder / "error.txt"
    if not path.exists():
        return None
    first, _, said = path.read_text().partition("\n")
    return Outcome(int(first.removeprefix("exit code ")), said.strip())


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
            last[:] = config.data, experiment.load_data(config)
        return last[1]

    return load


def keep_programs(out: Path) -> None:
    """What is compiled for one cell is kept for the others, in `out` unless jax has a place."""
    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(out.absolute() / ".compiled"))


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
    except Exception:
        return Outcome(1, _tail(traceback.format_exc()))
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
    try:
        while waiting or running:
            while waiting and free:
                cell, worker, said = waiting.popleft(), free.pop(0), tempfile.TemporaryFile("w+")
                process = _start(_command(cell, _ready(out / cell.name), shared), worker, said)
                running[process] = cell, worker, said
            time.sleep(POLL_SECONDS)
            for process in [p for p in running if p.poll() is not None]:
                cell, worker, said = running.pop(process)
                free.append(worker)
                said.seek(0)
                yield cell, Outcome(process.returncode, _tail(said.read()))
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _command(cell, folder, shared):
    command = [sys.executable, "-m", "fedjax_lab.main", f"--config={shared.path}:{cell.method}"]
    command += [f"--workdir={folder}", f"--seeds={','.join(map(str, cell.seeds))}"]
    settings = [*shared.overrides, *cell.grid.items()]
    command += [f"--config.{key}={text}" for key, text in settings]
    return command + ["--resume"] * (folder / "config.json").exists()


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
    environment = {"JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir}
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
    backend, devices = subprocess.check_output([sys.executable, "-c", ask], text=True).split()
    return backend, int(devices)


# What a person sees.


def follow(results: Iterator[tuple[Cell, Outcome]], todo: int, total: int, out: Path) -> bool:
    """Whether all came to their end: not after Ctrl-C. Records and tells how each did.

    With the time left for `todo` of `total` cells.
    """
    try:
        with contextlib.closing(results):
            _record_each(results, todo, total, out)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return False
    return True


def _record_each(results, todo, total, out):
    began, layout = time.monotonic(), "{desc}{n_fmt}/{total_fmt} |{bar}| {remaining} left"
    hidden = not sys.stderr.isatty()
    with tqdm(total=total, initial=total - todo, bar_format=layout, disable=hidden) as bar:
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
    last = json.loads((folder / "summary.json").read_text())["last"]
    mean = metrics.headline(last["mean"])
    if mean is None:
        return "done"
    return f"{mean:.2f}" + (f" +- {metrics.headline(last['std']):.2f}" if "std" in last else "")


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
    try:
        return _main(argv)
    except BadInput as error:
        return tell(error)


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
    check(todo, load)
    with lock.planning(out):
        planned = check_folder(shared, cells, out)  # with the cells of other shares
        workdir.remove_temporary(out)
        write_plan(planned, cells, out)
    keep_programs(out)
    print(f"{len(mine)} cells in {out}, {len(mine) - len(todo)} of them done", flush=True)
    if args.workers:
        results = run_in_workers(todo, out, shared, args.workers)
    else:
        groups = alike(todo, out) if args.together else [[cell] for cell in todo]
        results = run_here(groups, out, load)
    if not follow(results, len(todo), len(mine), out):
        return 130
    print(f"\nafter the last round\n{table(mine, keys, out)}\n\nresults: {out}")
    return int(any(ended(out / name) is None for name in mine))


def _parse(argv):
    argv, overrides = split_overrides(argv)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = refuse
    for flag in ("--config", "--out", "--methods"):
        parser.add_argument(flag)
    parser.add_argument("--seeds")
    parser.add_argument("--grid", action="append", default=[])
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--share", default="0/1")
    args, rest = parser.parse_known_args(argv[1:])
    if rest:
        flags = [f"--{name}" for name in vars(args)]
        raise BadInput(f"unexpected argument {rest[0]!r}; {nearest(rest[0], flags)}")
    for flag, example in (("config", "configs/quickstart.py"), ("out", "runs/sweep")):
        if not getattr(args, flag):
            raise BadInput(f"--{flag} is missing; for example --{flag}={example}")
    if args.workers and args.together:
        raise BadInput("--together runs cells in one process, --workers in many; drop one")
    if args.workers < 0:
        raise BadInput(f"--workers must not be negative, got {args.workers}")
    path, _, own = args.config.partition(":")
    methods = [own] if args.methods is None else args.methods.split(",")
    if args.methods is not None and (own or not all(methods)):
        named = f"--config={args.config} and --methods={args.methods}"
        raise BadInput(f"{named}: name each method once, for example --methods=fedavg,fedprox")
    seeds = parse_seeds(None if args.seeds is None else args.seeds.split(","))
    return args, methods, Shared(path, overrides, seeds)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    use_every_core()
    sys.exit(main(sys.argv))
