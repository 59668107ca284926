"""Measures of an attack: durability, exclusion, the worst honest client, and their picture."""

import json

import numpy as np
import pytest
import run_folders
from inputs import complaint

from fedjax_lab.analysis.figures import attack


def test_durability_is_the_rounds_until_half_of_the_success_is_gone():
    rounds, success = np.array([2, 4, 6, 8, 10]), np.array([10.0, 90, 60, 45, 20])
    assert attack.durability(rounds, success, 4) == 4
    assert attack.durability(rounds, success, 5) == 3
    assert attack.durability(rounds, np.array([0.0, 90, 80, 70, 60]), 4) is None
    assert attack.durability(rounds, None, 4) is None


def test_precision_and_recall_are_those_since_the_previous_evaluation():
    def row(excluded, attacked, both):
        recorded = {"excluded": excluded, "attacked": attacked, "excluded_attacks": both}
        return {"recorded": recorded}

    rows = [row([4, 0], [2, 0], [1, 0]), row([4, 4], [2, 3], [1, 3]), row([4, 4], [2, 3], [1, 3])]
    made = attack.exclusion(rows)
    np.testing.assert_allclose(made["precision"], [25, 75, np.nan])
    np.testing.assert_allclose(made["recall"], [50, 100, np.nan])
    assert attack.exclusion([*rows, {"round": 4}]) == {}


def test_the_worst_honest_client_is_not_one_that_attacks():
    rows = [{"seed": 3, "accuracy": {"per_client": [10.0, 70, 50, None]}}]
    section = {"name": "sign_flip", "share": 0.25, "per_round": 0, "first": 1, "last": 0}
    assert attack.worst_honest(section | {"clients": (0,)}, rows) == 50
    assert attack.worst_honest(section | {"clients": ()}, rows) in (10, 50)
    assert attack.worst_honest(section | {"clients": (), "per_round": 1}, rows) is None


def test_the_figure_of_a_run_whose_attack_ends(tmp_path):
    folder = run_folders.write(tmp_path / "run", {0: (50, 60, 70)})
    wanted = f"{folder}: no client attacks in this run (config.attack.name)"
    assert complaint(attack.draw, folder) == wanted
    config = json.loads((folder / "config.json").read_text())
    config["attack"] = {"name": "backdoor", "clients": [2], "last": 10}
    (folder / "config.json").write_text(json.dumps(config))
    rows = run_folders.rows_of(folder)
    for row, success in zip(rows, (80, 90, 30), strict=True):
        row["global_backdoor_success"] = success
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = attack.draw(folder)
    assert drawn.numbers["success of the backdoor"] == [80, 90, 30]
    assert drawn.numbers["durability"] == 5
    assert drawn.numbers["worst honest client"] == pytest.approx(60)  # the third one attacks
    assert "rounds until half of the success is gone" in drawn.text
    assert complaint(attack.draw, folder, seed=4) == f"{folder} has no evaluation of seed 4"
