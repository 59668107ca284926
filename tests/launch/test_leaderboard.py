"""The leaderboard: its plan for every method, the choice among draws, and its page."""

import leaderboard
import measure
import numpy as np
import pytest
import records
from records import Record
from slow_cases import exhaustive_but

from fedjax_lab.experiment.registry import METHODS
from fedjax_lab.running.storage import metric_rows

FACTS = "abc", "0.1.0", "2 x cpu"


def values(accuracy, score=80.0, **more):
    return {
        leaderboard.SCORE: score,
        leaderboard.ACCURACY: accuracy,
        leaderboard.LAST: accuracy - 2,
        leaderboard.WORST: accuracy - 20,
        leaderboard.GLOBAL: accuracy - 1,
        **more,
    }


def record(cell, seed, measured):
    settings = records.digest(records.settings_of(cell.config, leaderboard.records.ROOT))
    return Record(cell.name, seed, settings, *FACTS, measured)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """add(federation, method, scores, accuracies) records a method, in a temporary folder."""
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(leaderboard, "PAGE", tmp_path / "page.md")
    few = ["fedavg", "local", "ditto", "fedbn", "moon", "scaffold"]
    monkeypatch.setattr(leaderboard, "ORDER", few)

    def add(name, method, scores, accuracies=(), **more):
        drawn = leaderboard.draws(name, method)
        for cell, score in zip(drawn, scores, strict=False):
            of_draw = {records.DIVERGED: 3.0} if score is None else values(50.0, score)
            settings = records.settings_of(cell.config, tmp_path)
            records.add("leaderboard", [record(cell, 0, of_draw)], settings)
        if accuracies:
            best = leaderboard.chosen(drawn, leaderboard.current(drawn, tmp_path))
            settings = records.settings_of(best.config, tmp_path)
            of_seeds = [values(a, max(scores), **more) for a in accuracies]
            new = [record(best, seed, each) for seed, each in enumerate(of_seeds)]
            records.add("leaderboard", new, settings)

    return add


def lines_of(page, title):
    """The entries of a table's rows, and the list items below the table."""
    _, _, after_title = page.partition(f"## {title}\n")
    of_section = after_title.partition("\n## ")[0].splitlines()
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in of_section if line[:3] == "| `"]
    return rows, [line for line in of_section if line.startswith("- ")]


@pytest.mark.parametrize("name", exhaustive_but(["digits"], ["digits", "fashion"]))
def test_every_method_has_three_draws_with_the_learning_rates_of_fedavg(name):
    """One learning rate is drawn from each third of its log range."""
    plain = [draw.grid["local.lr"] for draw in leaderboard.draws(name, "fedavg")]
    thirds = np.log(np.array(plain, float) / 1e-3) / np.log(300) * 3
    assert name != "digits" or sorted(thirds.astype(int)) == [0, 1, 2]
    for method in METHODS:
        drawn = leaderboard.draws(name, method)
        assert len(drawn) == leaderboard.SEARCH.draws == 3
        assert [draw.seeds for draw in drawn] == [[0]] * 3
        assert [draw.grid["local.lr"] for draw in drawn] == plain
        assert all(draw.config.partition.validation > 0 for draw in drawn)
    assert sorted(leaderboard.ORDER) == sorted(METHODS)
    assert leaderboard.ORDER[:3] == ["fedavg", "local", "apfl"]


def test_the_best_draw_by_validation_gets_more_seeds():
    drawn = leaderboard.draws("digits", "fedprox")
    scored = [record(draw, 0, values(60.0, s)) for draw, s in zip(drawn, (70, 90, 80), strict=True)]
    assert leaderboard.chosen(drawn, scored[:2]) is None
    best = leaderboard.chosen(drawn, scored)
    assert best.name == drawn[1].name and best.seeds == [0, 1, 2]
    scored[1] = record(drawn[1], 0, {records.DIVERGED: 4.0})
    assert leaderboard.chosen(drawn, scored).name == drawn[2].name
    diverged = [record(draw, 0, {records.DIVERGED: 4.0}) for draw in drawn]
    assert leaderboard.chosen(drawn, diverged) is None


def test_the_page_ranks_complete_methods_and_lists_the_missing_ones(kept, tmp_path):
    cost = {leaderboard.MEGABYTES: 12.0, leaderboard.SECONDS: 3.0}
    kept("digits", "fedavg", (70, 90, 80), (80.0, 81.0, 82.0), **cost)
    kept("digits", "ditto", (70, 80, 90), (85.0, 86.0, 87.001))
    kept("digits", "local", (70, 80))
    kept("digits", "scaffold", (None, None, None))
    leaderboard.write(tmp_path)
    text = leaderboard.PAGE.read_text()
    rows, missing = lines_of(text, leaderboard.FEDERATIONS["digits"].title)
    (ditto, fedavg) = rows
    assert ditto[:2] == ["`ditto`", "1"] and fedavg[:2] == ["`fedavg`", "2"]
    assert fedavg[2:8] == ["81.0±2.5", "-", "-", "61.0", "80.0", "79.0"]
    assert fedavg[8:] == ["12.0", "3.0"]
    assert ditto[3:5] == ["+5.0±0.0", "-"] and ditto[8:10] == ["-", "-"]
    assert missing[0].endswith("after Holm's correction (methods: 1): `ditto`.")
    assert any("2 of 3 draws are measured: `local`." in line for line in missing)
    assert any("all draws diverged: `scaffold`." in line for line in missing)
    assert any("not measured:" in line and "`moon`" in line for line in missing)
    assert "commit: abc" in text and "`python launch/leaderboard.py`" in text
    rows, missing = lines_of(text, leaderboard.FEDERATIONS["fashion"].title)
    assert rows == [] and len(missing) == 1
    assert "has 50 rounds with all clients" in text and "0.00237, 0.0243, 0.095" in text


def test_differences_to_fedavg_and_local_have_intervals(kept, monkeypatch, tmp_path):
    """The reference, training on all data, has no rank and is not tested."""
    monkeypatch.setattr(leaderboard, "ORDER", ["fedavg", "local", "fedbn", "central"])
    kept("digits", "fedavg", (70, 90, 80), (80.0, 81.0, 82.0))
    kept("digits", "fedbn", (70, 90, 80), (83.0, 80.0, 82.5))
    kept("digits", "local", (70, 90, 80), (80.0, 81.0, 82.0))
    kept("digits", "central", (70, 90, 80), (90.0, 91.0, 92.001))
    leaderboard.write(tmp_path)
    page, title = leaderboard.PAGE.read_text(), leaderboard.FEDERATIONS["digits"].title
    (central, fedbn, *_), (significant, *_) = lines_of(page, title)
    assert central[:2] == ["`central`", "-"] and fedbn[:2] == ["`fedbn`", "1"]
    assert fedbn[3:5] == ["+0.8±5.0"] * 2
    assert significant.endswith("(methods: 2): no method.")


def test_draws_and_then_more_seeds_are_run_exactly_once(kept, monkeypatch, tmp_path):
    ran = []

    def train(cells, out):
        ran.extend((cell.name, cell.seeds) for cell in cells)
        return 0

    def read(table, cell, folder):
        assert table.measured is leaderboard.measured
        score = {"0.095": 90.0}.get(cell.grid["local.lr"], 60.0)
        return [(seed, "2 x cpu", values(70.0 + seed, score)) for seed in cell.seeds]

    monkeypatch.setattr(measure.sweep, "train", train)
    monkeypatch.setattr(measure, "read", read)
    flags = ["--methods=fedavg", "--federations=digits", f"--out={tmp_path}", "--commit=abc"]
    assert leaderboard.main(flags) == 0 and leaderboard.main(flags) == 0
    names = [f"digits/fedavg,local.lr={lr}" for lr in ("0.00237", "0.095", "0.0243")]
    more = f"{names[1]}-seeds-1,2"
    assert ran == [*((name, [0]) for name in names), (more, [1, 2])]
    rows, _ = lines_of(leaderboard.PAGE.read_text(), leaderboard.FEDERATIONS["digits"].title)
    assert rows[0][:3] == ["`fedavg`", "1", "71.0±2.5"]


def test_the_recorded_measures_of_a_run(capsys):
    rows = [
        {"round": r, "seed": 0, "id": 60.0 - r, "id_loss": 0.5, "seconds": 2.0 * r}
        | {"accuracy": {"mean": 70.0 + r, "worst10": 40.0}, "train_loss": 0.1 * r}
        | {"bytes_up": 1e6 * r, "bytes_down": 2e6 * r}
        for r in (1, 5, 10)
    ]
    assert metric_rows.pick_rounds(rows)["best_by_validation"]["round"] == 1
    of_best = {leaderboard.ACCURACY: 71.0, leaderboard.WORST: 40.0, leaderboard.SCORE: 59.0}
    cost = {leaderboard.MEGABYTES: 15.0, leaderboard.SECONDS: 10.0, leaderboard.SCORE_LOSS: 0.5}
    last = {"last/accuracy.mean": 80.0, "last/accuracy.worst10": 40.0}
    row = measure.runs.Row("digits/x", [], {0: rows})
    assert leaderboard.measured(row)[0] == {**last, **of_best, **cost}
    assert leaderboard.main(["--methods=fedprx"]) == 2
    assert "did you mean 'fedprox'?" in capsys.readouterr().err
