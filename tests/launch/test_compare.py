"""The comparison of this package's speed with PyTorch and FedJAX: commands, table, page."""

import json
import sys

import compare


def seconds(ours, torch, fedjax, **others):
    return {"fedjax_lab": ours, "PyTorch loop": torch, "FedJAX": fedjax} | others


def test_each_program_runs_once_in_its_environment_and_its_last_line_is_read(monkeypatch):
    calls = []

    def run(command, **kwargs):
        calls.append(command[:2])
        done = type("Done", (), {})()
        done.stdout = "a warning\n" + json.dumps({"seconds_per_round": len(calls)}) + "\n"
        return done

    monkeypatch.setattr(compare.subprocess, "run", run)
    pythons = {"peer_torch.py": "torch/python", "peer_fedjax.py": "fedjax/python"}
    times = compare.time_once("W2", pythons)
    ours = [sys.executable, "benchmark.py"]
    others = [["torch/python", "peer_torch.py"], ["fedjax/python", "peer_fedjax.py"]]
    assert calls == [ours, *others, ours]
    assert times == dict(zip(compare.PROGRAMS, (1, 2, 3, 4), strict=True))
    assert "one model, no federation" not in compare.time_once("W1", pythons)


def test_the_table_has_the_medians_of_the_ratios_within_repeats():
    slow, fast = seconds(2.0, 3.0, 8.0), seconds(1.0, 2.0, 4.0)
    middle = seconds(1.5, 1.5, 6.0) | {"one model, no federation": 0.75}
    times = [{work: of for work in compare.WORKLOADS} for of in (slow, fast, middle)]
    text = compare.shown({"commit": "abc", "seconds_per_round": times})
    assert "3 repeats" in text and "commit: abc" in text
    assert "| `W1` | 1.5 | 1.5 (1 to 2) | 4 (4 to 4) | 0.5 (0.5 to 0.5) |" in text
    text = compare.shown(
        {"commit": "abc", "seconds_per_round": [dict.fromkeys(("W1", "W2", "W3", "W4"), fast)]}
    )
    assert "| `W4` | 1 | 2 (2 to 2) | 4 (4 to 4) | - |" in text


def test_the_page_shows_the_measured_times():
    assert compare.shown(json.loads(compare.TIMES.read_text())) in compare.PAGE.read_text()
