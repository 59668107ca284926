"""The comparison of this package's speed with PyTorch and FedJAX: commands, table, page."""

import json
import subprocess
import sys

import compare
import pytest
from inputs import complaint

VERSIONS = {"fedjax_lab": {"jax": "1.0"}, "PyTorch loop": {"torch": "2.0"}}


def seconds(ours, torch, fedjax, **others):
    return {"fedjax_lab": ours, "PyTorch loop": torch, "FedJAX": fedjax} | others


def measured(*repeats):
    times = [dict.fromkeys(compare.WORKLOADS, each) for each in repeats]
    return {"commit": "abc", "cores": 2, "versions": VERSIONS, "seconds_per_round": times}


@pytest.fixture
def ran(monkeypatch, tmp_path):
    commands = []

    def run(words, **kwargs):
        commands.append(words[1:] if words[0] == sys.executable else words)
        asks = words[1] == "-c"
        text = "3.0 " * len(words[3:]) if asks else 'a warning\n{"seconds_per_round": 2}\n'
        return subprocess.CompletedProcess(words, 0, text, "")

    monkeypatch.setattr(compare.subprocess, "run", run)
    monkeypatch.setattr(compare.measure, "commit", lambda: "abc")
    monkeypatch.setattr(compare, "TIMES", tmp_path / "times.json")
    return commands


def test_a_repeat_runs_each_program_once_on_each_workload(ran):
    pythons = dict.fromkeys(compare.SCRIPTS, sys.executable)
    compare.time_once("W2", pythons | {"PyTorch loop": "torch/python"})
    assert ran == [
        ["benchmark.py", "--workload=W2", "--strategy=auto"],
        ["torch/python", "peer_torch.py", "--workload=W2"],
        ["peer_fedjax.py", "--workload=W2"],
        ["benchmark.py", "--workload=W2", "--strategy=central"],
    ]
    ran.clear()
    compare.time_once("W4", pythons)
    assert ran[1] == ["peer_torch.py", "--workload=W4", "--rounds=3"] and len(ran) == 3


def test_repeats_of_the_same_commit_are_added_and_others_replaced(ran, monkeypatch, capsys):
    flags = [f"--torch={sys.executable}", f"--fedjax={sys.executable}", "--repeats=2"]
    compare._main(flags)
    compare._main(flags)
    assert len(json.loads(compare.TIMES.read_text())["seconds_per_round"]) == 4
    assert "the medians of 4 repeats" in capsys.readouterr().out
    monkeypatch.setattr(compare.measure, "commit", lambda: "def")
    compare._main(flags)
    recorded = json.loads(compare.TIMES.read_text())
    assert recorded["commit"] == "def" and len(recorded["seconds_per_round"]) == 2


def test_bad_input_is_refused_before_anything_runs(ran):
    here = sys.executable
    for flags, message in (
        ([], "give both --torch"),
        ([f"--torch={here}"], "give both --torch"),
        (["--print", "--repeats=0"], "--repeats=0"),
        (["--torch=none", f"--fedjax={here}"], "--torch='none'"),
        (["--print"], "does not exist"),
    ):
        assert message in complaint(compare._main, flags)
    assert ran == []


def test_a_program_that_fails_is_named_with_its_last_line(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nboom\n")
    monkeypatch.setattr(compare.subprocess, "run", lambda *args, **kwargs: failed)
    message = complaint(compare.output, ["python"], "peer --workload=W1")
    assert "peer --workload=W1 failed (exit code 1): boom" in message


def test_the_table_has_medians_and_the_page_shows_the_measured_times():
    middle = seconds(1.5, 1.5, 6.0) | {"one model, no federation": 0.75}
    text = compare.shown(measured(seconds(2.0, 3.0, 8.0), seconds(1.0, 2.0, 4.0), middle))
    assert "3 repeats" in text and "commit: abc" in text and "torch 2.0" in text
    assert "| `W1` | 1.5 | 1.5 (1 to 2) | 4 (4 to 4) | 0.5 (0.5 to 0.5) |" in text
    text = compare.shown(measured(seconds(1.0, 99.7, 234.0)))
    assert "| `W4` | 1 | 100 (100 to 100) | 234 (234 to 234) | - |" in text
    recorded = compare.records.RESULTS / "speed_peers.json"
    assert compare.shown(json.loads(recorded.read_text())) in compare.PAGE.read_text()
