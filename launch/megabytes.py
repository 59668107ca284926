"""Draws docs/megabytes.png from docs/results/compression.csv.

    python launch/megabytes.py [FILE]

The figure shows the accuracy on the global test set against the megabytes uploaded by all clients,
for each compression of launch/tables/compression.py: the mean over seeds, shaded from the lowest
seed to the highest, on a logarithmic axis. Downloads are left out, since they are the same for all
compressions. FILE replaces docs/megabytes.png.
"""

import sys
from pathlib import Path

import measure
import records
from matplotlib.ticker import LogLocator, NullFormatter

from fedjax_lab.running import plots

PICTURE = records.ROOT / "docs" / "megabytes.png"


def picture(curves):
    """A figure with a line for each compression, whose name stands above the end of its line.

    curves: {compression: (megabytes [E], accuracies [seeds, E])}
    """
    figure = plots.draw_curves(list(curves.values()), "megabytes up", "accuracy, %")
    figure.set_size_inches(6.0, 3.8)
    (axes,) = figure.axes
    axes.set_xscale("log")
    least = min(megabytes[0] for megabytes, _ in curves.values())
    axes.set_xlim(least / 1.2, max(megabytes[-1] for megabytes, _ in curves.values()) * 1.2)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    turned = {"rotation": 45, "rotation_mode": "anchor", "fontsize": "small"}
    for i, (name, (megabytes, _)) in enumerate(curves.items()):
        color, x = plots.look(i)["color"], megabytes[-1]
        label = name.removesuffix(", with feedback")
        axes.text(x, 1.02, label, color=color, transform=axes.get_xaxis_transform(), **turned)
    return figure


if __name__ == "__main__":
    table, of_table = measure.recorded("compression")
    curves = {name: table.curve(of_table, name) for name in table.COMPRESSIONS}
    drawn = {name: curve for name, curve in curves.items() if len(curve[0])}
    print(plots.save(picture(drawn), Path(*sys.argv[1:2] or [PICTURE])))
