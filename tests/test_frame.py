"""The rows of a run as a DataFrame of pandas."""

import sys

import optional
from inputs import complaint

from fedjax_lab.running import results

pandas = optional.module("pandas")
ROW = {"round": 2, "seed": 0, "stage": "train", "accuracy": {"mean": 50.0, "per_client": [50.0]}}


def test_a_measure_that_a_row_lacks_is_blank():
    later = {**ROW, "round": 4, "accuracy": {"mean": 60.0, "gini": 0.1}, "bytes_up": 8}
    frame = results.frame([ROW, later])
    assert list(frame) == ["round", "seed", "stage", "accuracy.mean", "accuracy.gini"]
    assert frame["accuracy.mean"].tolist() == [50, 60]
    assert frame["accuracy.gini"].isna().tolist() == [True, False]


def test_the_error_without_pandas_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "pip install 'fedjax_lab[pandas]'" in complaint(results.frame, [ROW])
