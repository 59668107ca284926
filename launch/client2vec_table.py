"""Client2Vec's Table 1: base methods as they are, +i, +i+ii and +i+ii+iii, by both kinds of index.

    python launch/client2vec_table.py --config=configs/client2vec_digits.py --out=DIR
        [--bases=fedavg,fedavgm,feddyn,moon,fedlc,fediir] [--indices=federated,global]
        [--epochs=500] [--seeds=0] [--way=max_over_rounds] [--config.run.rounds=30 ...]

Each cell is one run of fedjax_lab.main in DIR; the first runs find the indices, which all others
take. What is finished is not run again, what was interrupted goes on. i: sampling; ii: aggregation;
iii: local training. A base has the settings that the config file gives it where it is run alone.
Accuracy in percent: mean over clients, then over seeds (population standard deviation); the best of
each row in bold.

--epochs  of the index network
--way     how the round is chosen: see fedjax_lab.report

Exit codes are those of fedjax_lab.sweep.
"""

if __name__ == "__main__":  # before the imports, which an interrupt may meet
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

STEPS = {
    "+i": ("aggregation", "local_training"),
    "+i+ii": ("local_training",),
    "+i+ii+iii": (),
}  # what each column leaves out


def main(argv: list[str]) -> int:
    """The command, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    args, overrides = _parse(argv)
    bases, indices = args.bases.split(","), args.indices.split(",")
    code = sweep.train([find_index(args, overrides, index) for index in indices], args.out)
    rows = {base: row(args, overrides, base, indices) for base in bases}
    code |= sweep.train([cell for cells in rows.values() for cell in cells], args.out)
    said = " ".join([args.config, *(f"--config.{key}={value}" for key, value in overrides)])
    title = f"{tables.WAYS[args.way]}, seeds {args.seeds}: {said}"
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
    """The run that finds an index: one round of training after it."""
    short = [*overrides, ("run.rounds", "1"), ("run.eval_every", "1")]
    settings = {"index": index, "index_epochs": args.epochs}
    return cell(args, short, f"index-{index}", "client2vec", settings)


def row(args, overrides, base: str, indices: list[str]) -> list[Cell]:
    """A base method as it is, and improved step by step with each index."""
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
    """One run of a method with these settings of its own."""
    point = {f"method.{key}": str(value) for key, value in settings.items()}
    loaded = load_config(f"{args.config}:{method}")
    config = resolve(loaded, [*overrides, *point.items()])
    return Cell(name, method, point, config, parse_seeds(args.seeds.split(",")))


def accuracies(folder: Path, way: str) -> list[float]:
    """The mean over clients of each seed; none where the run has not ended well."""
    return [each["accuracy.mean"] for each in measures(folder, way)]


def table(title: str, indices: list[str], rows: dict[str, list[list[float]]]) -> formats.Table:
    """Of the accuracies of seeds; the best mean of each row in bold."""
    header = ["", "as it is", *(f"{index} {step}" for index in indices for step in STEPS)]
    cells, bold = [], set()
    for i, (base, accuracy) in enumerate(rows.items()):
        cells.append([base, *map(spread, accuracy)])
        means = {j: np.mean(values) for j, values in enumerate(accuracy, 1) if values}
        bold |= {(i, j) for j, mean in means.items() if mean == max(means.values())}
    return formats.Table(title, header, cells, bold)


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
