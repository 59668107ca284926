"""Tests the table of attacks and aggregators."""

import attack_table
import pytest
import toys


def test_the_best_mean_of_each_attack_is_bold():
    numbers = {
        ("none", "none"): [90.0, 91.0],
        ("none", "krum"): [80.0],
        ("gaussian", "none"): [],
        ("gaussian", "krum"): [70.0, 72.0],
    }
    made = attack_table.table("title", ["none", "gaussian"], ["none", "krum"], numbers)
    assert made.header == ["", "none", "krum"]
    assert made.cells == [["none", "90.5 (0.5)", "80.0"], ["gaussian", "", "71.0 (1.0)"]]
    assert made.bold == {(0, 1), (1, 2)}


@pytest.mark.slow
def test_the_command_prints_the_table_of_a_small_federation(tmp_path, capsys):
    toys.write_examples(tmp_path / "data.npz")
    config = toys.write_config(tmp_path, run={"rounds": 4, "eval_every": 2})
    names = ["--attacks=none,gaussian", "--aggregators=none,median", "--measure=global"]
    command = [f"--config={config}", f"--out={tmp_path / 'out'}", *names, "--seeds=0,1"]
    assert attack_table.main(command) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip(" `") for line in lines] == ["", "---", "none", "gaussian"]
    assert all(cell.strip() for line in lines[2:] for cell in line.split("|")[1:-1])
    assert attack_table.main([*command, "--config.attack.std=2"]) == 2
