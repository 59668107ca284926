"""Runs cells of published tables in a given order within a given time, on a borrowed machine.

    python launch/limited_cells.py pack LIST --data=DIR --folder=DIR   # where the data sets are
    python launch/limited_cells.py run LIST --data=DIR --out=DIR --seconds=N   # on the machine

A line of LIST is PAPER TABLE CELL SEEDS, such as `fedc2i table1 fedavg/avg 0,1`; a # begins a
comment. CELL is the name of a cell or a part of it, as in `fedjax-lab paper --cells`. Put the
cells first that tell most in a second. `launch/limited_cells.txt` is such a list.

`pack` writes the arrays of every data set of the list to DIR/NAME.npz, at most 60 MB in all, which
travel with the checkout (git ignores runs/). `run` adds a line for each cell to OUT/records.jsonl
as soon as the cell has ended, and stops before its time is over: a run then saves its state, and if
a compilation or a round does not let it, the process ends. The same command continues.

Exit codes: 0 done, or the time is over; 1 a run failed; 2 a usage, config or data error.
"""

if __name__ == "__main__":  # before the slow imports, so that an interrupt during them is handled
    from fedjax_lab.commands import command

    command.begin()

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import measure
import numpy as np

from fedjax_lab import configs
from fedjax_lab.analysis import runs
from fedjax_lab.commands import command, paper, sweep
from fedjax_lab.commands.arguments import parse_seeds
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput, parse
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.keys import DEFAULTS
from fedjax_lab.papers import published
from fedjax_lab.running import runner
from fedjax_lab.running.storage import files

MOST_BYTES = 60_000_000  # of the packed data
RESERVE = 20.0  # seconds that are kept for saving a run and its records
LEAST = 30.0  # seconds with which another run begins


class Line(NamedTuple):
    """A line of the list."""

    paper: str
    table: str
    cells: str
    seeds: list[int]


def main(argv: list[str]) -> int:
    """Run the command with the arguments `argv`, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    begun = time.monotonic()
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("what", choices=("pack", "run"))
    parser.add_argument("list", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/limited"))
    parser.add_argument("--seconds", type=float, default=3600.0)
    args = parse(parser, argv)
    lines = list(read(args.list))
    if args.what == "pack":
        pack(lines, args.data, args.folder)
        return 0
    watchdog = threading.Timer(args.seconds - time.monotonic() + begun, os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()
    return run(lines, args.data, args.out, begun + args.seconds - RESERVE)


def read(path: Path) -> Iterator[Line]:
    """The lines of a list. Raises BadInput for a line that is not PAPER TABLE CELL SEEDS."""
    for number, text in enumerate(path.read_text().splitlines(), 1):
        words = text.partition("# ")[0].split()
        if words and len(words) != 4:
            raise BadInput(f"{path}, line {number}: not PAPER TABLE CELL SEEDS")
        if words:
            yield Line(*words[:3], parse_seeds(words[3].split(",")))


def cells_of(line: Line, folder: Path | None = None) -> list[paper.Cell]:
    """The cells of a line that have runs."""
    request = paper.Request(Path(configs.__path__[-1]), (), line.seeds, folder)
    planned = paper.plan(published.find(line.paper, line.table), request)
    return [cell for cell in paper.choose(planned, [line.cells]) if cell.runs]


# Packing.


def pack(lines: list[Line], where: Path, folder: Path | None) -> None:
    """Write the arrays of the data sets of these lines. Raises BadInput if they are too large."""
    where.mkdir(parents=True, exist_ok=True)
    configs_of = {
        file_name(run.cell.config): run.cell.config
        for line in lines
        for cell in cells_of(line, folder)
        for run in cell.runs
        if not run.missing
    }
    for name, config in configs_of.items():
        if not (where / name).exists():
            np.savez_compressed(where / name, **arrays_of(config))
        print(f"{where / name}: {(where / name).stat().st_size / 1e6:.1f} MB", flush=True)
    total = sum(file.stat().st_size for file in where.glob("*.npz"))
    if total > MOST_BYTES:
        raise BadInput(
            f"{where} has {total / 1e6:.0f} MB; at most {MOST_BYTES / 1e6:.0f} MB travel"
        )


def own_settings(config) -> dict:
    """The settings of the data source itself, without where its files are."""
    general = {*DEFAULTS["data"], "name", "folder", "cache"}
    return {key: value for key, value in config.data.items() if key not in general}


def file_name(config) -> str:
    """The name of the file with the arrays of a run's data set."""
    values = [str(value) for value in own_settings(config).values() if value != ""]
    return "-".join([config.data.name, *values]).replace("/", "_") + ".npz"


def arrays_of(config) -> dict[str, np.ndarray]:
    """The arrays of a data set, as the source `arrays` reads them."""
    section = {"name": config.data.name, **own_settings(config)}
    if "folder" in config.data:
        section["folder"] = config.data.folder
    data = experiment.load_data(resolve({"data": section}).data)
    made = {"x": np.asarray(data.x[:]), "y": data.y, "split": data.test.astype(int)}
    made["classes"] = np.array(data.classes)
    if len(data.domains) > 1:
        made["domain"] = np.array(data.domains)[data.domain]
    if data.client is not None:
        made["client"] = np.array(data.users)[data.client]
    return made


# Running.


def run(lines: list[Line], data: Path, out: Path, end: float) -> int:
    """Run the cells until the time `end`; returns the exit code."""
    code, commit = 0, measure.commit()
    for line in lines:
        folder = out / line.paper / line.table
        for cell in cells_of(line):
            begun, rounds = time.monotonic(), []
            for each in cell.runs:
                left = end - time.monotonic()
                if left < LEAST:
                    print("the time is over", flush=True)
                    return code
                code |= _train(each, data, folder, left)
                rounds.append(_rounds(folder / each.cell.name))
            record = {
                "paper": line.paper, "table": line.table, "cell": cell.name, "seeds": line.seeds,
                "printed": cell.result.mean, "printed_std": cell.result.std,
                "measured": paper.values(cell, folder), "rounds": rounds,
                "domains": _domains(cell, data),
                "seconds": round(time.monotonic() - begun, 1), "commit": commit,
            }  # fmt: skip
            with (out / "records.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)
    return code


def _train(each, data, folder, seconds):
    """Train one run on the packed arrays, for so many seconds at most."""
    config = each.cell.config.copy_and_resolve_references()
    if (file := data / file_name(config)).exists():
        general = {key: config.data[key] for key in DEFAULTS["data"] if key in config.data}
        section = {**general, "name": "arrays", "path": str(file)}
        config.data = resolve({"data": section}).data
        if config.partition.name == "by_domain":  # a release may lack some
            config.partition.num_clients = len(domains_of(file))
    config.run.max_seconds = seconds
    try:
        return sweep.train([each.cell._replace(config=config)], folder)
    except runner.Interrupted:  # before the first evaluation
        return 0


def _domains(cell, data):
    """The domains of the data, of which a printed mean may have more."""
    files_of = {data / file_name(run.cell.config) for run in cell.runs}
    return sorted({name for file in files_of if file.exists() for name in domains_of(file)})


def domains_of(file: Path) -> list[str]:
    """The names of the domains in a packed file."""
    with np.load(file) as arrays:
        return np.unique(arrays["domain"]).tolist() if "domain" in arrays else []


def _rounds(folder):
    """The last evaluated round and the number of rounds, 0 if there is none."""
    try:
        read_run = runs.read(folder)
    except files.Damaged:
        return [0, 0]
    last = read_run.rows[-1]["round"] if read_run.rows else 0
    return [last, read_run.config["run"]["rounds"]]


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
