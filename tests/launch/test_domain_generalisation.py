"""The table of unseen domains."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from pacs import make_folders, picture

ROOT = Path(__file__).parents[2]


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pacs(tmp_path):
    """A small PACS as its archive unpacks, with all that an archive may hold besides."""
    root = make_folders(tmp_path / "kfold")
    rng = np.random.default_rng(1)
    picture(rng, "RGBA").save(root / "photo" / "dog" / "pic_900.png")
    picture(rng, "P").save(root / "photo" / "dog" / "pic_901.png")
    (root / "photo" / "dog" / "._pic_000.JPG").write_bytes(b"\0\5\26\7")
    (root / "photo" / "dog" / "Thumbs.db").write_bytes(b"\0")
    (root / "photo" / ".DS_Store").write_bytes(b"\0")
    (root / "splits.txt").write_text("")
    (root / "__MACOSX" / "photo").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def command(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "launch"))
    import domain_generalisation

    return domain_generalisation


def rows_of(round, seed, id_per_client, ood_per_client):
    each = {"id_per_client": id_per_client, "ood_per_client": ood_per_client}
    return {"round": round, "seed": seed, **{k: v for k, v in each.items() if v}}


def test_a_cell_is_over_clients_and_seeds(command):
    rows = [
        rows_of(5, 0, [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
        rows_of(5, 1, [0.0, 0.0], [1.0, 1.0]),
        rows_of(10, 0, [100.0, 100.0, 100.0], [60.0, 60.0, 60.0]),
        rows_of(10, 1, [96.875, None, 96.875], [40.0, 40.0]),
    ]
    found = command.last_round(rows)
    assert command.cell(found["id"]) == "98.75 (1.53)"
    assert command.cell(found["ood"]) == "52.00 (9.80)"
    assert command.last_round([rows_of(1, 0, None, [1.0])]) == {"ood": [1.0]}


def test_the_table(command):
    cells = {
        "fedavg": {
            "photo": {"id": [80.0, 84.0], "ood": [50.0, 50.0]},
            "sketch": {"id": [60.0], "ood": [41.0]},
        },
        "local": {"photo": {"ood": [10.0]}, "sketch": {}},
    }
    assert command.markdown(cells) == [
        "| | id photo | id sketch | id mean | ood photo | ood sketch | ood mean |",
        "|---|---|---|---|---|---|---|",
        "| `fedavg` | 82.00 (2.00) | 60.00 (0.00) | 71.00 | 50.00 (0.00) | 41.00 (0.00) | 45.50 |",
        "| `local` |  |  |  | 10.00 (0.00) |  |  |",
    ]


def test_every_target_is_a_run(command, monkeypatch, pacs, own_cache, tmp_path, capsys):
    """Without --targets the data say which; a run that fails leaves its cells empty."""
    seen = []

    def run(args, method, folder, overrides):
        seen.append((method, folder.relative_to(tmp_path / "out").as_posix(), overrides))
        if folder.name == "sketch":
            return False
        folder.mkdir(parents=True)
        row = rows_of(2, 0, [90.0, 80.0], [30.0, 30.0])
        row |= {"bytes_up": 1, "bytes_down": 1, "seconds": 1.0}
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        return True

    monkeypatch.setattr(command.table, "run", run)
    file = ROOT / "configs" / "hfedf_pacs.py"
    place, rounds = f"--config.data.folder={pacs}", "--config.run.rounds=2"
    arguments = [f"--config={file}", f"--out={tmp_path / 'out'}", "--methods=fedavg,local"]
    monkeypatch.setattr(sys, "argv", ["x", *arguments, "--domains=1,2", place, rounds])
    command.main()
    assert len(seen) == len(set(folder for _, folder, _ in seen)) == 2 * 2 * 4
    own = ["--config.data.unseen=art_painting", "--config.partition.domains=2"]
    assert ("local", "local/d2/art_painting", [place, rounds, *own]) in seen
    out = capsys.readouterr().out
    assert out.count("| `local` | 85.00 (5.00) | 85.00 (5.00) | 85.00 (5.00) |  |  | 30.00") == 2
    assert "1 of the other domains per client" in out and "2 of the other domains" in out


def test_data_that_are_missing_end_the_command(command, monkeypatch, tmp_path):
    file = ROOT / "configs" / "hfedf_pacs.py"
    arguments = [f"--config={file}", f"--out={tmp_path}", "--methods=fedprox"]
    overrides = [f"--config.data.folder={tmp_path}", "--config.method.mu=0.5"]  # not fedavg's
    monkeypatch.setattr(sys, "argv", ["x", *arguments, *overrides])
    with pytest.raises(SystemExit) as stop:
        command.main()
    assert "no PACS in" in stop.value.code
