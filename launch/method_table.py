"""Prints a table of all methods: lines of code, bytes sent, accuracy.

    python launch/method_table.py --out=DIR [--config=configs/digit_domains.py]
        [--methods=fedavg,ditto,...] [--seeds=0] [--config.run.rounds=30 ...]

Each method is one run of fedjax_lab.main in DIR with its default settings. Finished runs are
skipped, and interrupted ones are resumed. The table is in Markdown and has these columns:

lines      non-blank lines of the method's file
up, down   bytes of the whole run in each direction, as multiples of FedAvg's
accuracy   mean over clients of the accuracy in percent on each client's own test examples, after
           the last round, averaged over seeds

Exit codes are those of fedjax_lab.sweep.
"""

if __name__ == "__main__":  # before the slow imports, so that an interrupt during them is handled
    from fedjax_lab import command

    command.begin()

import argparse
import inspect
import sys
from pathlib import Path

import numpy as np
from cells import ended_well

from fedjax_lab import command, parallel, sweep
from fedjax_lab.analysis import formats, runs
from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.errors import parse
from fedjax_lab.main import parse_seeds, split_overrides
from fedjax_lab.registry import METHODS
from fedjax_lab.running.sweep_plan import Cell

HEADER = ["method", "lines", "up", "down", "accuracy"]


def main(argv: list[str]) -> int:
    """Run the command with the arguments `argv`, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    args, overrides = _parse(argv)
    methods = args.methods.split(",")
    cells = [cell(args, overrides, method) for method in sorted({*methods, "fedavg"})]
    code = sweep.train(cells, args.out)
    measured = {each.method: last(args.out / each.name) for each in cells}
    rows = [row(method, measured[method], measured["fedavg"]) for method in methods]
    print("\n" + formats.markdown(formats.Table("", HEADER, rows)))
    return code


def _parse(argv):
    argv, overrides = split_overrides(argv)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", default="configs/digit_domains.py")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0")
    return parse(parser, argv), overrides


def cell(args, overrides, method: str) -> Cell:
    """The cell of a method with its default settings."""
    config = resolve(load_config(f"{args.config}:{method}"), overrides)
    return Cell(method, method, {}, config, parse_seeds(args.seeds.split(",")))


def last(folder: Path) -> tuple[float, float, float] | None:
    """(bytes up, bytes down, accuracy in percent), averaged over seeds; None for a failed run."""
    run = ended_well(folder)
    if run is None:
        return None
    by_seed = {row["seed"]: row for row in run.rows}  # the last row of each
    each = [
        (r["bytes_up"], r["bytes_down"], runs.measures(r)["accuracy.mean"])
        for r in by_seed.values()
    ]
    up, down, accuracy = np.mean(each, 0)
    return float(up), float(down), float(accuracy)


def row(method: str, measured, plain) -> list[str]:
    """The row of a method. measured, plain: the values of `last` for it and for FedAvg."""
    of_file = [method, str(lines(METHODS[method]))]
    if measured is None or plain is None:
        return [*of_file, formats.NONE, formats.NONE, formats.NONE]
    wire = [f"{a / b:.3g}" for a, b in zip(measured[:2], plain[:2], strict=True)]
    return [*of_file, *wire, f"{measured[2]:.1f}"]


def lines(function) -> int:
    """The number of non-blank lines of the method's file."""
    text = Path(inspect.getsourcefile(function)).read_text()
    return sum(bool(line.strip()) for line in text.splitlines())


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
