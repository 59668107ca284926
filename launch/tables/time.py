"""Synchronous and asynchronous methods on Fashion-MNIST, Dir(0.3), by the virtual clock.

Ten clients of 100 train at a time. The numbers are the global test accuracy at a virtual time and
after as many uploads, the virtual seconds and the uploads until TARGET, and the accuracy of the
global model on the test examples of the fastest and of the slowest fifth of the clients.
"""

import json

import numpy as np
import records
from matplotlib.figure import Figure

from fedjax_lab.analysis import formats, runs
from fedjax_lab.running import plots
from fedjax_lab.running.tasks import fifths

PAGE = "time.md"
PICTURE = "virtual_time.png"
CONFIG = "configs/asynchronous.py"
TARGET = 75.0
BUDGET = 1500.0  # virtual seconds
AT = np.linspace(100, BUDGET, 15)
ROUNDS = {"clock.concurrency": "0", "run.cohort": "10", "run.rounds": "150", "run.eval_every": "3"}
ROWS = {  # {label: (method, settings)}
    "FedAvg": ("fedavg", ROUNDS),
    "FedAvg, over-selection 1.3": (
        "fedavg",
        ROUNDS | {"clock.over_selection": "1.3", "run.rounds": "300", "run.eval_every": "6"},
    ),
    "FedBuff, K = 5": ("fedbuff", {"run.rounds": "640"}),
    "FedAsync, K = 1": (
        "fedasync",
        {"run.cohort": "1", "run.rounds": "3200", "run.eval_every": "50"},
    ),
    "CA2FL, K = 5": ("ca2fl", {"run.rounds": "640"}),
}
SEEDS = 0, 1, 2


def cells(out):
    """One cell for each row."""
    return records.cells_of_rows(CONFIG, ROWS, SEEDS)


def measured(row):
    """The numbers of each seed."""
    (run,) = row.runs
    names = json.loads((run.folder / "names.json").read_text())["clients"]
    return {
        seed: _seed_values(rows, names[str(seed)]["seconds"]) for seed, rows in row.seeds.items()
    }


def _seed_values(rows, seconds):
    time = np.array([r["virtual_seconds"] for r in rows])
    accuracy = np.array([runs.measures(r)["global"] for r in rows])
    curve = {f"at {t:g} s": float(accuracy[time <= t][-1]) for t in AT if (time <= t).any()}
    reached = np.flatnonzero(accuracy >= TARGET)
    until = {} if not len(reached) else _costs(rows, reached[0])
    in_time = [r for r in rows if r["virtual_seconds"] <= BUDGET]
    values = np.array(runs.client_values(in_time[-1], "accuracy.mean"), float)
    fast, *_, slow = (np.nanmean(group) for group in fifths(np.array(seconds), values))
    by_speed = {"fastest fifth": float(fast), "slowest fifth": float(slow)}
    ends = {"end": float(time[-1]), "MB": in_time[-1]["bytes_up"] / 1e6}
    return curve | until | by_speed | ends


def _costs(rows, i):
    return {"s to target": rows[i]["virtual_seconds"], "MB to target": rows[i]["bytes_up"] / 1e6}


def tables(of_table):
    """Accuracy at the budget, costs until the target, and accuracy by speed, of each row."""
    title = (
        f"Global test accuracy in percent after {BUDGET:g} virtual seconds, virtual seconds and MB"
        f" uploaded until {TARGET:g} %, and accuracy on the clients' own test examples by speed;"
        " means over seeds with standard deviations."
    )
    columns = {
        f"at {BUDGET:g} s": 1,
        "s to target": 0,
        "MB to target": 0,
        "fastest fifth": 1,
        "slowest fifth": 1,
    }
    rows = [
        [label, *(records.spread(of_table, label, key, n) for key, n in columns.items())]
        for label in ROWS
    ]
    return [formats.Table(title, ["", *columns], rows)]


def picture(of_table) -> Figure:
    """The accuracy of each row over virtual seconds."""
    curves = []
    for label in ROWS:
        values = [records.values(of_table, label, f"at {t:g} s") for t in AT]
        whole = [i for i, each in enumerate(values) if len(each) == len(SEEDS)]
        curves.append((AT[whole], np.array([values[i] for i in whole]).T))
    return plots.draw_curves(curves, "virtual seconds", "global test accuracy, %", list(ROWS))
