"""Two published tables of others: FLamby's Fed-Heart-Disease, and the 2NN of FedAvg's paper.

The cells and their settings are those of `fedjax-lab paper flamby table1` and `mcmahan table1`, and
so is what differs from the publications.
"""

import numpy as np
import records

from fedjax_lab.analysis import formats, runs
from fedjax_lab.papers import published

PAGE = "published_tables.md"
HOSPITALS = "cleveland", "hungarian", "switzerland", "va"
METHODS = "central", "local", "fedavg", "fedprox", "scaffold", "fedadagrad", "fedyogi", "fedadam"
ROUNDS = "rounds"
TARGET = 97.0
OF_PAPERS = {"flamby": (0, 1, 2, 3, 4), "mcmahan": (0,)}  # seeds


def cells(out):
    """A cell for each run of both tables."""
    specs = {
        f"{paper}/{spec.name}": (spec, seeds)
        for paper, seeds in OF_PAPERS.items()
        for result in published.find(paper, "1")
        for spec in published.recipe(result).specs
    }
    return [
        records.cell(name, f"configs/{spec.config}:{spec.method}", seeds, **spec.settings)
        for name, (spec, seeds) in specs.items()
    ]


def measured(row):
    """The accuracies after the last round, and the first round that reaches the target."""
    out = records.in_rounds("last", measures=("global", "domains.*"))(row)
    for seed, rows in row.seeds.items():
        reached = [r["round"] for r in rows if runs.measures(r)["global"] >= TARGET]
        out[seed] |= {ROUNDS: float(reached[0])} if reached else {}
    return out


def tables(of_table):
    """Both tables, printed beside measured numbers."""
    return [_flamby(of_table), _mcmahan(of_table)]


def _flamby(of_table):
    title = (
        "Fed-Heart-Disease: accuracy in percent at each hospital and, pooled, on all test patients:"
        " mean (population standard deviation) over five seeds, printed / here."
    )
    rows = [
        [
            method,
            *(_printed_and_here(of_table, method, column) for column in (*HOSPITALS, "pooled")),
        ]
        for method in METHODS
    ]
    return formats.Table(title, ["", *HOSPITALS, "pooled"], rows)


def _printed_and_here(of_table, method, column):
    results = [r for r in published.find("flamby", "1") if (r.method, r.column) == (method, column)]
    matching = [r for r in results if method != "local" or f"trained_on={column}" in r.setting]
    if not matching:
        return formats.NONE
    (result,) = matching
    printed, recipe = f"{result.mean:.1f} ({result.std:.1f})", published.recipe(result)
    if recipe.lacks:
        return f"{printed} / {formats.NONE}"
    name = f"flamby/{recipe.specs[0].name}"
    return f"{printed} / {records.spread(of_table, name, f'last/{recipe.measure}')}"


def _mcmahan(of_table):
    title = "MNIST: rounds until the 2NN reaches 97 % on the test examples, seed 0."
    rows = []
    for result in published.find("mcmahan", "1"):
        name = f"mcmahan/{published.recipe(result).specs[0].name}"
        here = records.values(of_table, name, ROUNDS)
        shown = f"{np.mean(here):.0f}" if here else formats.NONE
        rows.append([result.setting.replace(";", ", "), f"{result.mean:.0f}", shown])
    measured_rows = [row for row in rows if row[-1] != formats.NONE]
    return formats.Table(title, ["", "printed", "here"], measured_rows)
