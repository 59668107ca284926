"""Draws docs/hfedf_spread.png from docs/results/hfedf.csv.

    python launch/hfedf_spread.py [FILE]

Against rounds, for methods whose clients have models of their own: the standard deviation over
clients of the accuracy on the unseen domain, mean over the five targets, shaded from the lowest to
the highest seed (launch/tables/hfedf.py, Table 10's settings, one domain per client).
"""

import sys
from pathlib import Path

import measure
import numpy as np
import records

from fedjax_lab.analysis import plots

CELLS = "local", "pfedhn", "hfedf", "hfedf,server_lr=1e-2"
PICTURE = records.ROOT / "docs" / "hfedf_spread.png"


def curves(table, of_table) -> dict[str, np.ndarray]:
    """[seeds, rounds] of each method all of whose targets are measured."""
    found = {}
    for name in CELLS:
        cells = [f"d1/{name}/{target}" for target in table.TARGETS]
        values = [
            [records.values(of_table, cell, f"spread/{round}") for round in table.ROUNDS]
            for cell in cells
        ]
        if all(len(of_round) == 3 for of_cell in values for of_round in of_cell):
            found[name] = np.mean(values, 0).T
    return found


def picture(table, of_table):
    """A line for each method."""
    found, rounds = curves(table, of_table), np.array(table.ROUNDS)
    lines = [(rounds, values) for values in found.values()]
    ylabel = "std of ood over clients, points"
    return plots.draw_curves(lines, "round", ylabel, list(found))


if __name__ == "__main__":
    table = measure.load("hfedf")
    there, settings = records.read("hfedf")
    cells = table.cells(Path("runs/hfedf"))
    of_table = records.current(there, settings, cells, Path("runs/hfedf"))
    print(plots.save(picture(table, of_table), Path(*sys.argv[1:2] or [PICTURE])))
