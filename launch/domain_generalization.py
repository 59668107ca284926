"""hFedF's tables: every domain left out in turn; Markdown, accuracy in percent.

    python launch/domain_generalization.py --config=configs/hfedf_pacs.py --out=DIR
        --methods=fedavg,fedprox [--targets=photo,sketch] [--domains=1,2,3] [--seeds=0,1,2]
        [--config.run.rounds=100 ...]

Each target (config.data.unseen), number of domains per client (config.partition.domains) and method
is one run of fedjax_lab.main in DIR/METHOD/dN/TARGET. What is finished there is not run again, what
was interrupted goes on; a run with another config or other seeds is refused. Without --targets all
domains are left out in turn.

id is each client's accuracy on its own validation rows, ood on all of the target; a cell is their
mean (population standard deviation) over clients and seeds after the last round, and the mean over
targets is that of the cells. The paper scores `central` on the union of the validation rows, here
it is scored like all others.

Exit codes are those of fedjax_lab.sweep.
"""

if __name__ == "__main__":  # before the imports, which an interrupt may meet
    from fedjax_lab import command

    command.begin()

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from cells import ended_well

from fedjax_lab import command, experiment, parallel, sweep
from fedjax_lab.analysis import formats
from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.errors import parse
from fedjax_lab.main import parse_seeds, split_overrides
from fedjax_lab.running.sweep_plan import Cell

MEASURES = ("id", "ood")
Percents = dict[str, list[float]]  # of every client and seed, by measure


def main(argv: list[str]) -> int:
    """The command, without its name; returns the exit code."""
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
    """The domains of the config's data."""
    return experiment.load_data(resolve(load_config(config), overrides).data).domains


def cell(args, overrides, d: str, method: str, target: str) -> Cell:
    """One run: the domain left out, and how many of the others a client holds."""
    point = {"data.unseen": target, "partition.domains": d}
    loaded = load_config(f"{args.config}:{method}")
    config = resolve(loaded, [*overrides, *point.items()])
    seeds = parse_seeds(args.seeds.split(","))
    return Cell(f"{method}/d{d}/{target}", method, point, config, seeds)


def last_round(folder: Path) -> Percents:
    """What every client and seed has after the last round; empty where a run has not ended well."""
    run = ended_well(folder)
    if run is None:
        return {}
    last = [row for row in run.rows if row["round"] == run.rows[-1]["round"]]
    return {m: percents(last, m) for m in MEASURES if f"{m}_per_client" in last[0]}


def percents(rows: Iterable[dict], measure: str) -> list[float]:
    """Of every client and seed that has any, in one round."""
    return [v for row in rows for v in row[f"{measure}_per_client"] if v is not None]


def table(title: str, rows: dict[str, dict[str, Percents]]) -> formats.Table:
    """Of {method: {target: percents}}; gaps stay empty."""
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
    """Mean (population standard deviation)."""
    return f"{np.mean(values):.2f} ({np.std(values):.2f})"


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
