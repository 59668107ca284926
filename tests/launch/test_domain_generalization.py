"""The table of launch/domain_generalization.py, in which each domain is unseen once."""

from pathlib import Path

import domain_generalization
import pytest
import toys

from fedjax_lab.analysis import formats
from fedjax_lab.commands import sweep
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.sweeping.sweep_folder import Outcome

PACS = Path(__file__).parents[2] / "configs" / "hfedf_pacs.py"


def row_of(round, seed, id_per_client, ood_per_client):
    each = {"id_per_client": id_per_client, "ood_per_client": ood_per_client}
    return {"round": round, "seed": seed, **{k: v for k, v in each.items() if v}}


def test_a_table_entry_is_the_mean_and_std_over_clients_and_seeds():
    rows = [
        row_of(10, 0, [100.0, 100.0, 100.0], [60.0, 60.0, 60.0]),
        row_of(10, 1, [96.875, None, 96.875], [40.0, 40.0]),
    ]
    percents = {m: domain_generalization.percents(rows, m) for m in domain_generalization.MEASURES}
    assert domain_generalization.spread(percents["id"]) == "98.75 (1.53)"
    assert domain_generalization.spread(percents["ood"]) == "52.00 (9.80)"


def test_the_markdown_table_of_id_and_ood_percentages():
    rows = {
        "fedavg": {
            "photo": {"id": [80.0, 84.0], "ood": [50.0, 50.0]},
            "sketch": {"id": [60.0], "ood": [41.0]},
        },
        "local": {"photo": {"ood": [10.0]}, "sketch": {}},
    }
    table = domain_generalization.table("1 domain", rows)
    assert formats.markdown(table).splitlines() == [
        "1 domain",
        "",
        "|  | id photo | id sketch | id mean | ood photo | ood sketch | ood mean |",
        "|---|---:|---:|---:|---:|---:|---:|",
        "| `fedavg` | 82.00 (2.00) | 60.00 (0.00) | 71.00 | 50.00 (0.00) | 41.00 (0.00) | 45.50 |",
        "| `local` |  |  |  | 10.00 (0.00) |  |  |",
    ]


@pytest.mark.exhaustive
def test_every_target_domain_is_a_run(monkeypatch, pacs, empty_cache, tmp_path, capsys):
    """By default the targets are all domains; a failed run leaves its table entries empty."""
    trained = {}

    def run_one(cell, folder, load, log):
        trained[cell.name] = cell
        if folder.name == "sketch":
            return Outcome(1, "no memory")
        earlier, last = row_of(1, 0, [1.0, 1.0], [1.0, 1.0]), row_of(2, 0, [90.0, 80.0], [30.0])
        cost = {"bytes_up": 1, "bytes_down": 1, "seconds": 1.0, "train_loss": 0.1}
        folder.mkdir(parents=True)
        metric_rows.write_json(folder / "config.json", cell.saved)
        metric_rows.append(folder / "metrics.jsonl", [{**row, **cost} for row in (earlier, last)])
        metric_rows.write_json(folder / "summary.json", toys.SUMMARY)
        return Outcome(0)

    monkeypatch.setattr(sweep, "_run_one", run_one)
    command = [f"--config={PACS}", f"--out={tmp_path / 'out'}", "--methods=fedavg,local"]
    command += ["--domains=1,2", "--seeds=0", "--config.run.rounds=2"]
    assert domain_generalization.main([*command, f"--config.data.folder={pacs}"]) == 1
    assert len(trained) == 2 * 2 * 4
    config = trained["local/d2/art_painting"].config
    assert (config.data.unseen, config.partition.domains) == ("art_painting", 2)
    assert (config.method.name, config.run.rounds) == ("local", 2)
    out = capsys.readouterr().out
    assert out.count("| `local` | 85.00 (5.00) | 85.00 (5.00) | 85.00 (5.00) |  |  | 30.00") == 2
    assert "1 of the other domains per client" in out and "2 of the other domains" in out
