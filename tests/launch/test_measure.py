"""The tables of the documentation, which are measured in several sessions."""

import json
import shlex
from pathlib import Path

import measure
import pytest
import records
import toys
from documented import all_documented
from inputs import complaint
from records import Record
from slow_cases import slow_but

from fedjax_lab.analysis import formats
from fedjax_lab.commands import sweep
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.sweeping.sweep_folder import Outcome

NAMES = sorted(path.stem for path in measure.TABLES.glob("*.py"))
LARGE = {"hfedf", "leaderboard", "robustness"}
TABLE = """
import records

def cells(out):
    each = {{"fedavg": {{}}, "fedprox": {{"method.mu": "{mu}"}}}}
    return [records.cell(m, f"{config}:{{m}}", (0, 1), **more) for m, more in each.items()]

measured = records.in_rounds("last", measures=("accuracy.mean",))

def tables(of_table):
    columns = {{"accuracy": "last/accuracy.mean"}}
    return [records.table("Toy", ["fedavg", "fedprox"], columns, of_table)]
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """write(mu) writes a table of two methods, whose results are in tmp_path / "results"."""
    config = toys.write_config(tmp_path, run={"rounds": 2, "eval_every": 1})
    monkeypatch.setattr(measure, "TABLES", tmp_path)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")

    def write(mu=0.1):
        (tmp_path / "toy_table.py").write_text(TABLE.format(config=config, mu=mu))

    write()
    return write


@pytest.fixture
def trained(monkeypatch):
    """The names and seeds of the cells that were run; their final accuracy is 80 + seed."""
    cells = []

    def run_one(cell, folder, load, log, on_evaluation):
        cells.append((cell.name, cell.seeds))
        if "fails" in (folder.parent / "what").read_text():
            return Outcome(1, "no memory")
        metric_rows.make_folder(folder)
        metric_rows.write_json(folder / "config.json", cell.saved)
        cost = {"bytes_up": 1, "bytes_down": 1, "seconds": 1.0, "train_loss": 0.1}
        rows = [
            {"round": r, "seed": s, "accuracy": {"mean": 78.0 + r + s}, **cost}
            for r in (1, 2)
            for s in cell.seeds
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        ends = {} if cell.name[:7] != "fedprox" else {"diverged": {"round": 2, "seed": 1}}
        metric_rows.write_json(
            folder / "summary.json", {**toys.SUMMARY, "seeds": cell.seeds, **ends}
        )
        return Outcome(0)

    monkeypatch.setattr(sweep, "_run_one", run_one)
    return cells


def command(tmp_path, *flags, what=""):
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    (out / "what").write_text(what)
    return measure.main(["toy_table", f"--out={out}", "--commit=abc", *flags])


@pytest.mark.parametrize("name", slow_but(set(NAMES) - LARGE, NAMES))
def test_every_table_has_valid_cells_and_its_page_shows_its_current_numbers(name):
    """It can be made without records; then it names its command, and shows no stale number.

    If the page is not current, run `python launch/measure.py NAME --write`.
    """
    table, out = measure.load(name), Path("runs") / name
    cells = table.cells(out)
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names) > 0 and all(cell.seeds for cell in cells)
    assert {need for cell in cells for need in cell.note.get("needs", ())} <= {*names}
    assert all(isinstance(each, formats.Table) for each in table.tables([]))
    text = measure.shown(name, table, cells, out)
    assert f"`python launch/measure.py {name}`" in text and "earlier settings" not in text
    for words in (shlex.split(line, comments=True)[2:] for line in all_documented()):
        if words[:1] == [name]:  # raises BadInput for unknown cells and seeds
            measure.left(measure._parse(words), cells)
    page = measure.page(table).read_text()
    assert not records.read(name)[0] or f"<!-- {name} -->\n{text}\n<!-- end {name} -->\n" in page


def test_unknown_cells_are_rejected(toy, tmp_path, capsys):
    assert command(tmp_path, "--cells=no such cell*") == 2
    assert "no such cell; valid: fedavg, fedprox" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_cells_are_recorded_and_not_run_again(toy, trained, tmp_path, capsys):
    assert command(tmp_path, what="fails") == 1
    assert records.read("toy_table") == ([], {})
    trained.clear()
    assert command(tmp_path, "--cells=fedavg", "--seeds=1") == 0
    assert command(tmp_path) == 1  # fedprox diverges
    assert trained == [("fedavg-seeds-1", [1]), ("fedavg-seeds-0", [0]), ("fedprox", [0, 1])]
    assert command(tmp_path) == 0 and len(trained) == 3
    printed = capsys.readouterr().out.split("cell 1 of")[-1]
    assert "| `fedavg` | **80.5 (0.5)** |" in printed and "| `fedprox` | diverged |" in printed
    assert "4 of 4 runs" in printed and "commits: abc" in printed and "devices: 2 x cpu" in printed
    recorded, settings = records.read("toy_table")
    assert {(r.cell, r.seed) for r in recorded} == {
        (c, s) for c in ("fedavg", "fedprox") for s in (0, 1)
    }
    assert recorded[0].values == {"last/accuracy.mean": 81.0}
    assert str(tmp_path) not in json.dumps(settings)


def test_a_used_up_budget_begins_no_cell_and_a_refused_cell_has_a_reason(
    toy, trained, tmp_path, monkeypatch, capsys
):
    assert command(tmp_path, "--budget=-1") == 0 and not trained
    assert "the budget is used up; 2 of 2 are left" in capsys.readouterr().out
    monkeypatch.setattr(sweep, "_run_one", lambda *given: Outcome(2, "needs images"))
    command(tmp_path, "--cells=fedavg")
    assert records.reasons("toy_table") == {"fedavg": "needs images"}


@pytest.mark.exhaustive
def test_a_changed_setting_makes_numbers_stale(toy, trained, tmp_path, capsys):
    command(tmp_path)
    toy(mu=0.2)
    capsys.readouterr()
    command(tmp_path, "--print")
    printed = capsys.readouterr().out
    assert "`fedprox`" not in printed and "**80.5 (0.5)**" in printed
    assert "2 of 4 runs" in printed and "2 with earlier settings are left out" in printed
    command(tmp_path, "--list")
    assert "fedprox         -    0,1   0,1" in capsys.readouterr().out
    assert command(tmp_path) == 2  # the folder holds the earlier run
    trained.clear()
    (tmp_path / "again").mkdir()
    assert command(tmp_path / "again") == 1 and trained == [("fedprox", [0, 1])]


def test_records_stay_current_if_a_new_setting_has_its_default(capsys):
    old = {"run.rounds": 50, "method.name": "scaffold"}
    for added, is_same in (
        ({}, True),
        ({"run.target": 0.0}, True),
        ({"run.target": 5.0}, False),
        ({"method.weights": "uniform"}, False),
        ({"model.depth": 2}, False),
    ):
        assert records.same(old, {**old, **added}) == is_same
        assert not records.same(old, {**old, **added, "run.rounds": 30})
    assert not records.same({**old, "run.target": 0.0}, old)
    assert records.same({**old, "engine.sampling": "exact"}, old)  # a removed setting
    assert not records.same({**old, "engine.sampling": "device"}, old)
    assert measure.main(["fedpick_digit"]) == 2
    assert "did you mean 'fedpick_digits'" in capsys.readouterr().err


def test_a_new_record_replaces_the_old_one_and_unused_settings_are_dropped(monkeypatch, tmp_path):
    """Settings do not depend on the output folder. A table is written between marker lines."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    facts = "abc+", "0.1.0", "2 x cpu"
    settings = [{"run.rounds": n} for n in (10, 20)]
    digests = [records.digest(each) for each in settings]
    first = [Record("x", seed, digests[0], *facts, {"id": 80.0 + seed}) for seed in (0, 1)]
    records.add("t", first, settings[0])
    again = Record("x", 1, digests[1], *facts, {"ood": 12.3456})
    records.add("t", [again], settings[1])
    assert records.read("t") == ([first[0], again], dict(zip(digests, settings, strict=True)))
    records.add("t", [again._replace(seed=0, data="ab")], settings[1])
    assert records.read("t")[0][-1].data == "ab" and records.read("t")[0][0].data == ""
    assert records.read("t")[1] == {digests[1]: settings[1]}

    digests = {"labels": "1", "partition of seed 0": "2", "partition of seed 1": "3"}
    digests |= {f"{name} of seed {seed}": "4" for name in ("speeds", "start") for seed in (0, 1)}
    (tmp_path / "fingerprint.json").write_text(json.dumps(digests))
    of_seeds = [records.data_digest(tmp_path, seed) for seed in (0, 1)]
    assert of_seeds[0] == records.digest({"labels": "1", "partition of seed 0": "2"}) != of_seeds[1]
    assert records.data_digest(tmp_path / "absent", 0) == ""

    def settings_in(out):
        more = {"method.index_of": str(out / "index")}
        config = records.cell("a", "configs/client2vec_digits.py:client2vec", (0,), **more).config
        return records.settings_of(config, out)

    assert settings_in(tmp_path)["method.index_of"] == "OUT/index"
    assert settings_in(tmp_path) == settings_in(Path("a"))
    page = tmp_path / "results.md"
    page.write_text("a\n<!-- t -->\nold\n<!-- end t -->\nb\n")
    measure.write(page, "t", "| new |")
    assert page.read_text() == "a\n<!-- t -->\n| new |\n<!-- end t -->\nb\n"
    assert "lacks the lines <!-- u -->" in complaint(measure.write, page, "u", "")
