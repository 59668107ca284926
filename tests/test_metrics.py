"""The rounds that a summary reports, and truncated lines of metrics."""

import numpy as np
import pytest

from fedjax_lab.commands import report
from fedjax_lab.running.storage import metric_rows

ROWS = [
    {"round": r, "seed": s, "train_loss": 1.0, "accuracy": {"mean": a, "per_client": []}, "id": v}
    for s, values in enumerate([[(50, 9), (70, 5), (60, 7)], [(55, 1), (45, 3), (65, 2)]])
    for r, (a, v) in enumerate(values, 1)
]


def test_a_summary_chooses_its_round_in_three_ways():
    got = metric_rows.summarize(ROWS, [0, 1])
    rounds = {way: [got[way]["per_seed"][s]["round"] for s in "01"] for way in got}
    assert rounds == {"last": [3, 3], "best_by_validation": [1, 2], "max_over_rounds": [2, 3]}
    assert got["last"]["mean"]["accuracy"]["mean"] == 62.5
    assert got["last"]["std"]["accuracy"]["mean"] == pytest.approx(np.std([60, 65], ddof=1))
    assert got["last"]["ddof"] == 1
    assert not {"std", "ddof"} & set(metric_rows.summarize(ROWS[:3], [0])["last"])


def test_a_summary_also_takes_the_best_round_of_each_domain():
    """FedPick reports these values. The mean is over the best accuracy of each client."""
    rows = [
        {"round": r, "seed": 0, "train_loss": 1.0, "domains": {"a": a, "b": b}}
        | {"accuracy": {"mean": (a + b + 10) / 3, "per_client": [a, b, 10.0, None]}}
        for r, (a, b) in enumerate([(50.0, 30.0), (40.0, 60.0), (45.0, 55.0)], 1)
    ]
    got = metric_rows.summarize(rows, [0])
    assert got["max_over_rounds"]["mean"]["domains"] == {"a": 40.0, "b": 60.0}
    assert got["max_per_domain"]["mean"] == {
        "domains": {"a": 50.0, "b": 60.0},
        "accuracy": {"mean": 40.0},
    }
    table = report.closing_table({**got, "seeds": [0]})
    assert "best per domain" in table.splitlines()[0]


def test_the_best_round_of_an_error_is_not_called_a_maximum():
    rows = [
        {"round": r, "seed": 0, "train_loss": 1.0, "rmse": {"mean": error}}
        for r, error in enumerate([3.0, 1.0, 2.0], 1)
    ]
    got = metric_rows.summarize(rows, [0])
    assert got["max_over_rounds"]["mean"]["rmse"] == {"mean": 1.0}
    table = report.closing_table({**got, "seeds": [0]})
    assert "best over rounds" in table and "max" not in table
