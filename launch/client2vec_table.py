"""Prints Client2Vec's Table 1: base methods alone, +i, +i+ii and +i+ii+iii, with two indices.

    python launch/client2vec_table.py --config=configs/client2vec_digits.py --out=DIR
        [--bases=fedavg,fedavgm,feddyn,moon,fedlc,fediir] [--indices=federated,global]
        [--epochs=500] [--seeds=0] [--way=max_over_rounds] [--config.run.rounds=30 ...]

Each cell is one run of fedjax_lab.main in DIR; the first runs compute the indices, which all others
use. Finished runs are skipped, and interrupted ones are resumed. The improvements are i: sampling,
ii: aggregation, iii: local training. A base method has the settings that the config file gives it
when it is run alone. Numbers are accuracies in percent: the mean over clients, then over seeds
(population standard deviation); the best number of each row is bold.

--indices  kinds of index: see the setting `index` of client2vec
--epochs   epochs for which the index network is trained
--way      rule that chooses the reported round; see fedjax_lab.report

Exit codes are those of fedjax_lab.sweep.
"""

if __name__ == "__main__":  # before the slow imports, so that an interrupt during them is handled
    from fedjax_lab import command

    command.begin()

import argparse
import sys
from pathlib import Path

import numpy as np
from cells import measures, spread

from fedjax_lab import command, parallel, sweep
from fedjax_lab.analysis import formats, tables
from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.errors import parse
from fedjax_lab.main import parse_seeds, split_overrides
from fedjax_lab.running.sweep_plan import Cell

STEPS = {  # {column: improvements that it leaves out}
    "+i": ("aggregation", "local_training"),
    "+i+ii": ("local_training",),
    "+i+ii+iii": (),
}


def main(argv: list[str]) -> int:
    """Run the command with the arguments `argv`, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    args, overrides = _parse(argv)
    bases, indices = args.bases.split(","), args.indices.split(",")
    code = sweep.train([find_index(args, overrides, index) for index in indices], args.out)
    rows = {base: row(args, overrides, base, indices) for base in bases}
    code |= sweep.train([cell for cells in rows.values() for cell in cells], args.out)
    flags = " ".join([args.config, *(f"--config.{key}={value}" for key, value in overrides)])
    title = f"{tables.WAYS[args.way]}, seeds {args.seeds}: {flags}"
    numbers = {
        base: [accuracies(args.out / cell.name, args.way) for cell in cells]
        for base, cells in rows.items()
    }
    print("\n" + formats.markdown(table(title, indices, numbers)))
    return code


def _parse(argv):
    argv, overrides = split_overrides(argv)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--bases", default="fedavg,fedavgm,feddyn,moon,fedlc,fediir")
    parser.add_argument("--indices", default="federated,global")
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--way", default="max_over_rounds", choices=tables.WAYS)
    return parse(parser, argv), overrides


def find_index(args, overrides, index: str) -> Cell:
    """The cell that computes an index, followed by only one round of training."""
    short = [*overrides, ("run.rounds", "1"), ("run.eval_every", "1")]
    settings = {"index": index, "index_epochs": args.epochs}
    return cell(args, short, f"index-{index}", "client2vec", settings)


def row(args, overrides, base: str, indices: list[str]) -> list[Cell]:
    """The cells of a base method: alone, and with the improvements of STEPS for each index."""
    cells = [cell(args, overrides, base, base, {})]
    alone = dict(load_config(f"{args.config}:{base}")["method"])
    alone.pop("name")
    for index in indices:
        improved = {"index": index, "index_of": args.out / f"index-{index}", "base": base, **alone}
        for step, without in STEPS.items():
            settings = improved | dict.fromkeys(without, False)
            cells.append(cell(args, overrides, f"{base}-{index}-{step}", "client2vec", settings))
    return cells


def cell(args, overrides, name: str, method: str, settings: dict) -> Cell:
    """The cell of a method with these settings of the section `method`."""
    point = {f"method.{key}": str(value) for key, value in settings.items()}
    loaded = load_config(f"{args.config}:{method}")
    config = resolve(loaded, [*overrides, *point.items()])
    return Cell(name, method, point, config, parse_seeds(args.seeds.split(",")))


def accuracies(folder: Path, way: str) -> list[float]:
    """The mean accuracy over clients of each seed; empty if the run has not ended or has failed."""
    return [each["accuracy.mean"] for each in measures(folder, way)]


def table(title: str, indices: list[str], rows: dict[str, list[list[float]]]) -> formats.Table:
    """A table with a row for each base method; the best mean of each row is bold.

    rows: {base: for each column the accuracies of the seeds}.
    """
    header = ["", "alone", *(f"{index} {step}" for index in indices for step in STEPS)]
    cells, bold = [], set()
    for i, (base, accuracy) in enumerate(rows.items()):
        cells.append([base, *map(spread, accuracy)])
        means = {j: np.mean(values) for j, values in enumerate(accuracy, 1) if values}
        bold |= {(i, j) for j, mean in means.items() if mean == max(means.values())}
    return formats.Table(title, header, cells, bold)


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
