"""Prints a table of attacks and aggregators: the accuracy of a method under each pair of them.

    python launch/attack_table.py --config=configs/fashion_mnist_attacks.py --out=DIR
        [--attacks=none,gaussian,...] [--aggregators=none,median,...] [--seeds=0,1,2]
        [--measure=global] [--way=last] [--config.run.rounds=20 ...]

Each cell is one run of fedjax_lab.main in DIR. Finished runs are skipped, and interrupted ones are
resumed. The numbers are means over seeds, with the population standard deviation; the best number
of each row is bold.

--attacks, --aggregators  names as in config.attack and config.aggregator, by default all that are
                          built in. Settings follow a name after colons:
                          --aggregators=none,centered_clipping:radius=1
--measure                 any measure of fedjax_lab.report, such as global (accuracy on the global
                          test set), accuracy.mean (mean over clients of the accuracy on their own
                          test examples) or global_backdoor_success
--way                     rule that chooses the reported round; see fedjax_lab.report

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
from choices import folder, point

from fedjax_lab import command, parallel, sweep
from fedjax_lab.analysis import formats, tables
from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.errors import parse
from fedjax_lab.main import parse_seeds, split_overrides
from fedjax_lab.measures import is_percent
from fedjax_lab.registry import NAMED
from fedjax_lab.running.sweep_plan import Cell


def main(argv: list[str]) -> int:
    """Run the command with the arguments `argv`, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    args, overrides = _parse(argv)
    attacks, aggregators = args.attacks.split(","), args.aggregators.split(",")
    cells = {(a, b): cell(args, overrides, a, b) for a in attacks for b in aggregators}
    code = sweep.train(list(cells.values()), args.out)
    numbers = {pair: values(args, args.out / each.name) for pair, each in cells.items()}
    flags = " ".join([args.config, *(f"--config.{key}={value}" for key, value in overrides)])
    unit = " in percent" if is_percent(args.measure) else ""
    title = f"{args.measure}{unit}, {tables.WAYS[args.way]}, seeds {args.seeds}: {flags}"
    print("\n" + formats.markdown(table(title, attacks, aggregators, numbers)))
    return code


def _parse(argv):
    argv, overrides = split_overrides(argv)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--attacks", default=",".join(NAMED["attack"]))
    parser.add_argument("--aggregators", default=",".join(NAMED["aggregator"]))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--measure", default="global")
    parser.add_argument("--way", default="last", choices=tables.WAYS)
    return parse(parser, argv), overrides


def cell(args, overrides, attack: str, aggregator: str) -> Cell:
    """The cell of this attack and this aggregator."""
    chosen = point("attack", attack) | point("aggregator", aggregator)
    config = resolve(load_config(args.config), [*overrides, *chosen.items()])
    name = f"{folder(attack)}-{folder(aggregator)}"
    return Cell(name, config.method.name, chosen, config, parse_seeds(args.seeds.split(",")))


def values(args, folder: Path) -> list[float]:
    """The measure of each seed that has it; empty if the run has not ended or has failed."""
    of_seeds = measures(folder, args.way)
    return [each[args.measure] for each in of_seeds if args.measure in each]


def table(title: str, attacks, aggregators, numbers: dict) -> formats.Table:
    """A table with a row for each attack and a column for each aggregator.

    numbers: {(attack, aggregator): values of the seeds}. The best mean of each row is bold.
    """
    cells, bold = [], set()
    for i, attack in enumerate(attacks):
        of_row = [numbers[attack, aggregator] for aggregator in aggregators]
        cells.append([attack, *map(spread, of_row)])
        means = {j: np.mean(each) for j, each in enumerate(of_row, 1) if each}
        bold |= {(i, j) for j, mean in means.items() if mean == max(means.values())}
    return formats.Table(title, ["", *aggregators], cells, bold)


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
