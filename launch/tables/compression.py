"""Accuracy against megabytes: FedAvg on Fashion-MNIST with eight compressions of the uploads.

The numbers are, at every tenth of 300 rounds, the accuracy in percent on the global test set and
the megabytes that all clients have uploaded until then. The figure shows the mean over seeds,
shaded from the lowest seed to the highest; downloads are the same for all and left out.
"""

import numpy as np
import records
from matplotlib.ticker import LogLocator, NullFormatter

from fedjax_lab.analysis import formats, runs
from fedjax_lab.running import plots

PAGE = "transforms.md"
PICTURE = "megabytes.png"
COMPRESSIONS: dict[str, dict[str, str]] = {
    "none": {},
    "qsgd, 8 bits": {"name": "qsgd"},
    "random_k, 10 %": {"name": "random_k", "share": "0.1"},
    "qsgd, 2 bits": {"name": "qsgd", "bits": "2"},
    "low_rank, rank 2, with feedback": {"name": "low_rank"},
    "sign, with feedback": {"name": "sign"},
    "top_k, 1 %, with feedback": {"name": "top_k"},
    "random_k, 1 %": {"name": "random_k"},
}
ROUNDS = range(10, 301, 10)
TARGET = 80.0


def cells(out):
    """One cell for each compression."""
    config, seeds = "configs/fashion_mnist_compressed.py:fedavg", (0, 1, 2)
    return [
        records.cell(name, config, seeds, **{f"compression.{k}": v for k, v in settings.items()})
        for name, settings in COMPRESSIONS.items()
    ]


def measured(row):
    """The accuracy and the megabytes at each of ROUNDS, for each seed."""
    return {seed: _curve(rows) for seed, rows in row.seeds.items()}


def _curve(rows):
    out = {}
    for r in rows:
        if r["round"] in ROUNDS:
            out[f"global/{r['round']}"] = runs.measures(r)["global"]
            out[f"megabytes/{r['round']}"] = r["bytes_up"] / 1e6
    return out


def curve(of_table, name) -> tuple[np.ndarray, np.ndarray]:
    """The megabytes [E], a mean over seeds, and accuracies [seeds, E] of a cell; E = 0: no runs."""
    sent = [np.array(records.values(of_table, name, f"megabytes/{r}")) for r in ROUNDS]
    values = [np.array(records.values(of_table, name, f"global/{r}")) for r in ROUNDS]
    if not all(map(len, values)):
        return np.zeros(0), np.zeros((0, 0))
    return np.mean(sent, 1), np.stack(values, 1)


def tables(of_table):
    """A table with the final megabytes and accuracy, and the megabytes until the target."""
    header = ["", "megabytes in 300 rounds", "accuracy, %"]
    header.append(f"megabytes until the mean first reaches {TARGET:.0f} %")
    title = (
        "Uploads of all clients, and accuracy on the global test set after the last round: mean"
        " (population standard deviation) over seeds 0, 1, 2."
    )
    return [formats.Table(title, header, [_row(of_table, name) for name in COMPRESSIONS])]


def _row(of_table, name):
    megabytes, values = curve(of_table, name)
    if not len(megabytes):
        return [name, formats.NONE, formats.NONE, formats.NONE]
    reached = np.flatnonzero(values.mean(0) >= TARGET)
    until = f"{megabytes[reached[0]]:.3g}" if len(reached) else "never"
    accuracy = records.spread(of_table, name, f"global/{ROUNDS[-1]}")
    return [name, f"{megabytes[-1]:.3g}", accuracy, until]


def picture(of_table):
    """A figure with a line for each compression, whose name stands above the end of its line."""
    curves = {name: curve(of_table, name) for name in COMPRESSIONS}
    curves = {name: of_name for name, of_name in curves.items() if len(of_name[0])}
    figure = plots.draw_curves(list(curves.values()), "megabytes up", "accuracy, %")
    figure.set_size_inches(6.0, 3.8)
    (axes,) = figure.axes
    axes.set_xscale("log")
    least = min(megabytes[0] for megabytes, _ in curves.values())
    axes.set_xlim(least / 1.2, max(megabytes[-1] for megabytes, _ in curves.values()) * 1.2)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    for i, (name, (megabytes, _)) in enumerate(curves.items()):
        color, x = plots.look(i)["color"], megabytes[-1]
        label = name.removesuffix(", with feedback")
        axes.text(
            x,
            1.02,
            label,
            color=color,
            transform=axes.get_xaxis_transform(),
            rotation=45,
            rotation_mode="anchor",
            fontsize="small",
        )
    return figure
