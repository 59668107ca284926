"""Cells in the order of a list, and the data that travel with them."""

import json
from types import SimpleNamespace

import limited_cells
import numpy as np
from inputs import complaint

from fedjax_lab.commands import paper
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve


def test_a_list_has_cells_with_seeds_and_comments(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("# first\nfedconcat table1 fmnist/partition=#C=2/fedavg 0,1 # cheap\n\n")
    (line,) = limited_cells.read(path)
    assert line == ("fedconcat", "table1", "fmnist/partition=#C=2/fedavg", [0, 1])
    path.write_text("fedconcat table1 0\n")
    assert "line 1: not PAPER TABLE" in complaint(lambda: list(limited_cells.read(path)))


def test_every_line_of_the_list_has_cells():
    for line in limited_cells.read(limited_cells.Path(limited_cells.__file__).with_suffix(".txt")):
        rows = limited_cells.published.find(line.paper, line.table)
        names = [limited_cells.published.cell_name(row) for row in rows]
        assert any(line.cells in name for name in names), line


def test_packed_arrays_are_those_of_the_source(tmp_path):
    config = resolve(
        {
            "data": {
                "name": "digit_domains",
                "size": 16,
                "train_per_domain": 10,
                "test_per_domain": 10,
            }
        }
    )
    made = limited_cells.arrays_of(config)
    file = tmp_path / limited_cells.file_name(config)
    np.savez_compressed(file, **made)
    again = experiment.load_data(resolve({"data": {"name": "arrays", "path": str(file)}}).data)
    first = experiment.load_data(config.data)
    for name in ("x", "y", "test"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))
    names = np.array(first.domains)[first.domain]
    np.testing.assert_array_equal(np.array(again.domains)[again.domain], names)
    assert limited_cells.domains_of(file) == sorted(first.domains)


def test_no_run_begins_when_the_time_is_over(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(limited_cells.measure, "commit", lambda: "abc")
    monkeypatch.setattr(limited_cells, "LEAST", 0.0)
    run = SimpleNamespace(cell=SimpleNamespace(name="x", config=resolve({})))
    result = SimpleNamespace(mean=1.0, std=None)
    cell = SimpleNamespace(name="a/cell", runs=[run], result=result)
    monkeypatch.setattr(limited_cells, "cells_of", lambda line: [cell])
    trained = []
    monkeypatch.setattr(limited_cells, "_train", lambda *given: trained.append(given) or 0)
    monkeypatch.setattr(paper, "values", lambda cell, folder: [2.0])
    line = limited_cells.Line("fedc2i", "table1", "a", [0])
    now = limited_cells.time.monotonic()
    assert limited_cells.run([line], tmp_path, tmp_path, now + 60) == 0
    assert limited_cells.run([line], tmp_path, tmp_path, now - 1) == 0
    (record,) = (tmp_path / "records.jsonl").read_text().splitlines()
    assert json.loads(record)["measured"] == [2.0] and len(trained) == 1
    assert "the time is over" in capsys.readouterr().out
