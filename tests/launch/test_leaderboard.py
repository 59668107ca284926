"""The leaderboard: its draws for every method, the choice among them, and its tables."""

import measure
import numpy as np
import pytest
import records
from records import Record
from slow_cases import exhaustive_but

from fedjax_lab.experiment.registry import METHODS
from fedjax_lab.running.storage import metric_rows

table = measure.load("leaderboard")
FACTS = "digest", "abc", "0.1.0", "2 x cpu"


def values(accuracy, score=80.0, **more):
    return {
        table.SCORE: score,
        table.ACCURACY: accuracy,
        table.WORST: accuracy - 20,
        table.GLOBAL: accuracy - 1,
        **more,
    }


def record(cell, seed, measured):
    return Record(cell.name, seed, *FACTS, measured)


def method_records(name, method, scores, accuracies=(), **more):
    """The records of a method's draws, and of the best one with all seeds."""
    drawn = table.draws(name, method)
    out = [
        record(draw, 0, {records.DIVERGED: 3.0} if score is None else values(50.0, score))
        for draw, score in zip(drawn, scores, strict=False)
    ]
    if accuracies:
        best = table.chosen(out, name, method)
        out = [each for each in out if each.cell != best]
        new = [values(accuracy, max(scores), **more) for accuracy in accuracies]
        out += [Record(best, seed, *FACTS, of_seed) for seed, of_seed in enumerate(new)]
    return out


@pytest.mark.parametrize("name", exhaustive_but(["digits"], ["digits", "fashion"]))
def test_every_method_has_three_draws_with_the_learning_rates_of_fedavg(name):
    """One learning rate is drawn from each third of its log range."""
    plain = [draw.grid["local.lr"] for draw in table.draws(name, "fedavg")]
    thirds = np.log(np.array(plain, float) / 1e-3) / np.log(300) * 3
    assert name != "digits" or sorted(thirds.astype(int)) == [0, 1, 2]
    for method in table.NAMES:
        drawn = table.draws(name, method)
        assert len(drawn) == table.FEDERATIONS[name].draws == 3
        assert [draw.seeds for draw in drawn] == [[0]] * 3
        assert [draw.grid["local.lr"] for draw in drawn] == plain
        assert all(draw.config.partition.validation > 0 for draw in drawn)
    assert sorted(table.ORDER) == sorted(table.NAMES) and {*table.NAMES} < {*METHODS}
    assert table.ORDER[:3] == ["fedavg", "local", "adcol"]


def test_the_best_draw_by_validation_is_chosen():
    place = "digits", "fedprox"
    drawn = table.draws(*place)
    scored = method_records(*place, (70, 90, 80))
    assert table.chosen(scored[:2], *place) == ""
    assert table.chosen(scored, *place) == drawn[1].name
    assert table.chosen(method_records(*place, (70, None, 80)), *place) == drawn[2].name
    assert table.chosen(method_records(*place, (None, None, None)), *place) == ""


def test_the_best_draw_gets_all_seeds_once_every_draw_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(table, "ORDER", ["fedavg"])
    drawn = table.draws("digits", "fedavg")
    for draw, score in zip(drawn, (60.0, 90.0, 70.0), strict=True):
        assert all(cell.seeds == [0] for cell in table.cells(tmp_path))
        settings = records.settings_of(draw.config, tmp_path)
        of_draw = record(draw, 0, values(70.0, score))
        records.add("leaderboard", [of_draw._replace(settings=records.digest(settings))], settings)
    cells = {cell.name: cell.seeds for cell in table.cells(tmp_path)}
    assert [cells[draw.name] for draw in drawn] == [[0], [0, 1, 2], [0]]


def test_complete_methods_are_ranked_and_the_others_named(monkeypatch):
    few = ["fedavg", "local", "ditto", "fedbn", "moon", "scaffold"]
    monkeypatch.setattr(table, "ORDER", few)
    cost = {table.MEGABYTES: 12.0}
    digits, fashion, *_ = table.tables(
        method_records("digits", "fedavg", (70, 90, 80), (80.0, 81.0, 82.0), **cost)
        + method_records("digits", "ditto", (70, 80, 90), (85.0, 86.0, 87.001))
        + method_records("digits", "local", (70, 80))
        + method_records("digits", "moon", (70, 80, 90))
        + method_records("digits", "scaffold", (None, None, None))
    )
    ditto, fedavg = digits.cells
    assert fedavg == ["fedavg", "81.0±2.5", "-", "61.0", "80.0", "12.0"]
    assert ditto[0] == "ditto" and ditto[2] == "+5.0±0.0" and ditto[-1] == "-"
    assert "after Holm's correction (methods: 1): ditto." in digits.title
    assert digits.title.endswith("missing or diverged: local, fedbn, moon, scaffold.")
    assert fashion.cells == []


def test_differences_to_fedavg_have_intervals(monkeypatch):
    """The reference, training on all data, is not tested."""
    monkeypatch.setattr(table, "ORDER", ["fedavg", "local", "fedbn", "central"])
    digits, *_ = table.tables(
        method_records("digits", "fedavg", (70, 90, 80), (80.0, 81.0, 82.0))
        + method_records("digits", "fedbn", (70, 90, 80), (83.0, 80.0, 82.5))
        + method_records("digits", "local", (70, 90, 80), (80.0, 81.0, 82.0))
        + method_records("digits", "central", (70, 90, 80), (90.0, 91.0, 92.001))
    )
    central, fedbn, *_ = digits.cells
    assert central[0] == "central" and fedbn[0] == "fedbn"
    assert fedbn[2] == "+0.8±5.0"
    assert digits.title.endswith("(methods: 2): no method.")


def test_the_recorded_measures_of_a_run():
    rows = [
        {"round": r, "seed": 0, "id": 60.0 - r, "id_loss": 0.5, "seconds": 2.0 * r}
        | {"accuracy": {"mean": 70.0 + r, "worst10": 40.0}, "train_loss": 0.1 * r}
        | {"bytes_up": 1e6 * r, "bytes_down": 2e6 * r}
        for r in (1, 5, 10)
    ]
    assert metric_rows.pick_rounds(rows)["best_by_validation"]["round"] == 1
    of_best = {table.ACCURACY: 71.0, table.WORST: 40.0, table.SCORE: 59.0}
    cost = {table.MEGABYTES: 15.0, table.SECONDS: 10.0, table.SCORE_LOSS: 0.5}
    last = {"last/accuracy.mean": 80.0, "last/accuracy.worst10": 40.0}
    row = measure.runs.Row("digits/x", [], {0: rows})
    assert table.measured(row)[0] == {**last, **of_best, **cost}
