"""Synthetic(1, 1) of the FedProx paper with and without stragglers, on four data sets.

The numbers are the loss and the accuracy in percent of the global model on all test examples,
averaged over the evaluations of rounds 165 to 200.
"""

import numpy as np
import records

from fedjax_lab.analysis import formats, runs

PAGE = "data.md"
DATA_SEEDS = "0", "1", "5", "6"
SLOW = "0.9"  # the share of clients that are too slow for all passes
ROWS = {  # {label: (method, settings)}
    "FedAvg": ("fedavg", {}),
    "FedProx, mu = 1": ("fedprox", {}),
    "FedAvg, run.dropout=0.9": ("fedavg", {"run.dropout": SLOW}),
    "FedProx, mu = 1, run.straggler=0.9": ("fedprox", {"run.straggler": SLOW}),
}
LAST = range(165, 201)
MEASURES = "global_loss", "global"
SEEDS = 0, 1, 2, 3, 4


def cells(out):
    """One cell for each row and each data set."""
    return [_cell(label, data) for label in ROWS for data in DATA_SEEDS]


def _cell(label, data):
    method, settings = ROWS[label]
    config = f"configs/synthetic.py:{method}"
    return records.cell(_name(label, data), config, SEEDS, **{"data.seed": data}, **settings)


def _name(label, data):
    method, settings = ROWS[label]
    return "/".join([method, *settings, f"data {data}"])


def measured(row):
    """The loss and the accuracy of each seed, averaged over LAST."""
    return {seed: _averages(rows) for seed, rows in row.seeds.items()}


def _averages(rows):
    at = [runs.measures(r) for r in rows if r["round"] in LAST]
    return {key: float(np.mean([m[key] for m in at])) for key in MEASURES}


def tables(of_table):
    """Loss and accuracy of each row on each data set, averaged over seeds."""
    title = (
        "Loss and accuracy in percent on the test examples, averaged over rounds 165 to 200 and"
        " over seeds 0 to 4, on data sets drawn with four values of data.seed."
    )
    header = ["", *(f"data.seed={seed}" for seed in DATA_SEEDS)]
    rows = [[label, *(_pair(of_table, label, d) for d in DATA_SEEDS)] for label in ROWS]
    return [formats.Table(title, header, rows)]


def _pair(of_table, label, data):
    values = [records.values(of_table, _name(label, data), measure) for measure in MEASURES]
    if not all(values):
        return formats.NONE
    loss, accuracy = map(np.mean, values)
    return f"{loss:.2f}, {accuracy:.1f}"
