"""Draws accuracy against megabytes for a method with each compression of its uploads.

    python launch/megabytes.py --config=fashion_mnist --out=DIR [--method=fedavg]
        [--compressions=none,top_k,random_k,qsgd,sign,low_rank] [--measure=accuracy.mean]
        [--seeds=0,1,2] [--config.run.rounds=100 ...]

Compressions are separated by spaces or commas. Settings follow a name after colons:
`--compressions="none top_k:share=0.1 qsgd:bits=2"`. Each is one run of fedjax_lab.main in
DIR/COMPRESSION. Finished runs are skipped, and interrupted ones are resumed; a folder that holds a
run with another config or other seeds is an error.

DIR/megabytes.png shows the measure against the megabytes uploaded by all clients, as the mean over
seeds, shaded from the lowest seed to the highest, on a logarithmic axis. Downloads are left out,
since they are the same for all compressions. The table has the same numbers after the last round.

Exit codes are those of fedjax_lab.sweep.
"""

if __name__ == "__main__":  # before the slow imports, so that an interrupt during them is handled
    from fedjax_lab import command

    command.begin()

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cells import ended_well
from choices import folder, point
from matplotlib.ticker import LogLocator, NullFormatter

from fedjax_lab import command, parallel, sweep
from fedjax_lab.analysis import formats, plots, runs
from fedjax_lab.analysis.tables import with_unit
from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.errors import parse
from fedjax_lab.main import parse_seeds, split_overrides
from fedjax_lab.running.sweep_plan import Cell

ALL = "none,top_k,random_k,qsgd,sign,low_rank"


class Curve(NamedTuple):
    """The measure of a run at its E evaluations, against the megabytes uploaded until then."""

    megabytes: np.ndarray  # [E], summed over clients and rounds, mean over seeds
    values: np.ndarray  # [seeds, E]


def main(argv: list[str]) -> int:
    """Run the command with the arguments `argv`, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    args, overrides = _parse(argv)
    names = args.compressions.replace(",", " ").split()
    cells = [cell(args, overrides, name) for name in names]
    code = sweep.train(cells, args.out)
    curves = {
        name: curve_of(args.out / c.name, args.measure)
        for name, c in zip(names, cells, strict=True)
    }
    drawn = {name: curve for name, curve in curves.items() if curve is not None}
    if drawn:
        print("\n" + formats.markdown(table(args.measure, drawn)))
        print(plots.save(picture(args.measure, drawn), args.out / "megabytes.png"))
    return code


def _parse(argv):
    argv, overrides = split_overrides(argv)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--compressions", default=ALL)
    parser.add_argument("--measure", default="accuracy.mean")
    parser.add_argument("--seeds", default="0,1,2")
    return parse(parser, argv), overrides


def cell(args, overrides, compression: str) -> Cell:
    """The cell of a compression: its name, with settings such as share=0.1 after colons."""
    chosen = point("compression", compression)
    loaded = load_config(f"{args.config}:{args.method}")
    config = resolve(loaded, [*overrides, *chosen.items()])
    seeds = parse_seeds(args.seeds.split(","))
    return Cell(folder(compression), args.method, chosen, config, seeds)


def curve_of(folder: Path, measure: str) -> Curve | None:
    """The curve of a run; None if the run has not ended or has failed."""
    run = ended_well(folder)
    if run is None:
        return None
    by_seed: dict[int, list[dict]] = {}
    for row in run.rows:
        by_seed.setdefault(row["seed"], []).append(row)
    sent = [[row["bytes_up"] / 1e6 for row in rows] for rows in by_seed.values()]
    values = [[runs.measures(row)[measure] for row in rows] for rows in by_seed.values()]
    return Curve(np.mean(sent, 0), np.array(values))


def picture(measure: str, curves: dict[str, Curve]):
    """A figure with a line for each compression, whose name stands above the end of its line."""
    figure = plots.draw_curves(list(curves.values()), "megabytes up", with_unit(measure))
    figure.set_size_inches(6.0, 3.6)
    least = min(curve.megabytes[curve.megabytes > 0].min() for curve in curves.values())
    most = max(curve.megabytes.max() for curve in curves.values())
    (axes,) = figure.axes
    axes.set_xscale("log")
    axes.set_xlim(least / 1.2, most * 1.2)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    turned = {"rotation": 45, "rotation_mode": "anchor", "fontsize": "small"}
    for i, (name, curve) in enumerate(curves.items()):
        color, x = plots.look(i)["color"], curve.megabytes[-1]
        axes.text(x, 1.02, name, color=color, transform=axes.get_xaxis_transform(), **turned)
    return figure


def table(measure: str, curves: dict[str, Curve]) -> formats.Table:
    """A table of the last round: mean over seeds (population standard deviation)."""
    cells = []
    for name, curve in curves.items():
        last = curve.values[:, -1]
        cells.append([name, f"{curve.megabytes[-1]:.3g}", f"{last.mean():.2f} ({last.std():.2f})"])
    return formats.Table("last round", ["", "megabytes up", with_unit(measure)], cells)


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
