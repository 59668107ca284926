"""Draws docs/hfedf_spread.png from docs/results/hfedf.csv.

    python launch/hfedf_spread.py [FILE]

The figure is about methods that give each client its own model. It shows, against rounds, the
standard deviation over clients of the accuracy on the unseen domain, averaged over the five unseen
domains, and shaded from the lowest to the highest seed. FILE replaces docs/hfedf_spread.png. The
runs are those of launch/tables/hfedf.py with the settings of the paper's Table 10 and one domain
per client.
"""

import sys
from pathlib import Path

import measure
import numpy as np
import records

from fedjax_lab.running import plots

CELLS = "local", "pfedhn", "hfedf", "hfedf,server_lr=1e-2"
PICTURE = records.ROOT / "docs" / "hfedf_spread.png"


def curves(table, of_table) -> dict[str, np.ndarray]:
    """The curves [seeds, rounds] of each method for which all targets and seeds are measured."""
    out = {}
    for name in CELLS:
        cells = [f"d1/{name}/{target}" for target in table.TARGETS]
        values = [
            [records.values(of_table, cell, f"spread/{round}") for round in table.ROUNDS]
            for cell in cells
        ]
        if all(len(of_round) == 3 for of_cell in values for of_round in of_cell):
            out[name] = np.mean(values, 0).T
    return out


def picture(table, of_table):
    """A figure with a line for each method."""
    by_method, rounds = curves(table, of_table), np.array(table.ROUNDS)
    lines = [(rounds, values) for values in by_method.values()]
    ylabel = "std of ood over clients, points"
    return plots.draw_curves(lines, "round", ylabel, list(by_method))


if __name__ == "__main__":
    table, of_table = measure.recorded("hfedf")
    print(plots.save(picture(table, of_table), Path(*sys.argv[1:2] or [PICTURE])))
