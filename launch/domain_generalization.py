"""Prints hFedF's tables in Markdown: accuracy in percent, with every domain left out in turn.

    python launch/domain_generalization.py --config=configs/hfedf_pacs.py --out=DIR
        --methods=fedavg,fedprox [--targets=photo,sketch] [--domains=1,2,3] [--seeds=0,1,2]
        [--config.run.rounds=100 ...]

Each target (the domain left out, config.data.unseen), number of domains per client
(config.partition.domains) and method is one run of fedjax_lab.main in DIR/METHOD/dN/TARGET.
Finished runs are skipped, and interrupted ones are resumed; a folder that holds a run with another
config or other seeds is an error. Without --targets every domain is a target in turn.

id is each client's accuracy on its own validation rows, ood its accuracy on all examples of the
target. A cell of a table is the mean (population standard deviation) over clients and seeds after
the last round; the column `mean` is the mean of the cells over targets. The paper scores `central`
on the union of the validation rows; here it is scored like all other methods.

Exit codes are those of fedjax_lab.sweep.
"""

if __name__ == "__main__":  # before the slow imports, so that an interrupt during them is handled
    from fedjax_lab.commands import command

    command.begin()

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from cells import ended_well

from fedjax_lab.analysis import formats
from fedjax_lab.commands import command, sweep
from fedjax_lab.commands.arguments import parse_seeds, split_overrides
from fedjax_lab.engine import parallel
from fedjax_lab.errors import parse
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.sweeping.sweep_plan import Cell

MEASURES = ("id", "ood")
Percents = dict[str, list[float]]  # {measure: accuracies of every client and seed}


def main(argv: list[str]) -> int:
    """Run the command with the arguments `argv`, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    args, overrides = _parse(argv)
    methods, counts = args.methods.split(","), args.domains.split(",")
    targets = args.targets.split(",") if args.targets else None
    targets = targets or all_domains(f"{args.config}:{methods[0]}", overrides)
    cells = {
        (d, method, target): cell(args, overrides, d, method, target)
        for d in counts
        for method in methods
        for target in targets
    }
    code = sweep.train(list(cells.values()), args.out)
    print(f"\nlast round; mean (population std) over clients and seeds {args.seeds}")
    print(" ".join([args.config, *(f"--config.{key}={value}" for key, value in overrides)]))
    measured = {place: last_round(args.out / cell.name) for place, cell in cells.items()}
    for d in counts:
        rows = {m: {target: measured[d, m, target] for target in targets} for m in methods}
        print("\n" + formats.markdown(table(f"{d} of the other domains per client", rows)))
    return code


def _parse(argv):
    argv, overrides = split_overrides(argv)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--methods", required=True)
    parser.add_argument("--targets", default="")
    parser.add_argument("--domains", default="1,2,3")
    parser.add_argument("--seeds", default="0,1,2")
    return parse(parser, argv), overrides


def all_domains(config: str, overrides: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The names of all domains of the config's data set."""
    return experiment.load_data(resolve(load_config(config), overrides).data).domains


def cell(args, overrides, d: str, method: str, target: str) -> Cell:
    """The cell that leaves out the domain `target`; each client holds `d` of the other domains."""
    point = {"data.unseen": target, "partition.domains": d}
    loaded = load_config(f"{args.config}:{method}")
    config = resolve(loaded, [*overrides, *point.items()])
    seeds = parse_seeds(args.seeds.split(","))
    return Cell(f"{method}/d{d}/{target}", method, point, config, seeds)


def last_round(folder: Path) -> Percents:
    """The measures after the last round; empty if the run has not ended or has failed."""
    run = ended_well(folder)
    if run is None:
        return {}
    last = [row for row in run.rows if row["round"] == run.rows[-1]["round"]]
    return {m: percents(last, m) for m in MEASURES if f"{m}_per_client" in last[0]}


def percents(rows: Iterable[dict], measure: str) -> list[float]:
    """The measure of every client and seed that has it; `rows` are those of one round."""
    return [v for row in rows for v in row[f"{measure}_per_client"] if v is not None]


def table(title: str, rows: dict[str, dict[str, Percents]]) -> formats.Table:
    """The table of `rows`, {method: {target: percents}}; cells without numbers stay empty."""
    targets = list(next(iter(rows.values())))
    header = ["", *(f"{m} {column}" for m in MEASURES for column in (*targets, "mean"))]
    cells = []
    for method, by_target in rows.items():
        line = [method]
        for m in MEASURES:
            values = [by_target[target].get(m) for target in targets]
            line += [spread(v) if v else "" for v in values]
            line.append(f"{np.mean([np.mean(v) for v in values]):.2f}" if all(values) else "")
        cells.append(line)
    return formats.Table(title, header, cells)


def spread(values: Sequence[float]) -> str:
    """Format the values as mean (population standard deviation)."""
    return f"{np.mean(values):.2f} ({np.std(values):.2f})"


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
