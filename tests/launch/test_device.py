"""The script that measures a device, with steps that take no time."""

import sys

import device
import pytest
from device import Step, lines_of

LINE = '{"seconds_per_round": 0.0125, "seconds_per_evaluation": 0.5, "utilization": 0.9}'
STEPS = [
    Step("good", ("-c", f"print('noise'); print('{LINE}')"), 60),
    Step("crash", ("-c", "import os; os._exit(6)"), 60),
    Step("slow", ("-c", "import time; time.sleep(60)"), 1),
    Step(
        "beside", ("-c", "import os; print({'a': 1} and '{\"a\": ' + os.environ['N'] + '}')"), 60
    )._replace(timed=False, environment={"N": "3"}),
]


def test_each_step_has_a_row_and_is_not_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(device, "steps", lambda: STEPS)
    monkeypatch.setattr(sys, "argv", ["device.py", f"--out={tmp_path}"])
    for _ in range(2):
        device.main()
        *_, good, crash, slow, beside = capsys.readouterr().out.splitlines()
        assert good.startswith("| good | 12.5 | 500 |") and '"utilization": 0.9' in good
        assert "exit code 6" in crash and "stopped after 1 s" in slow and '{"a": 3}' in beside
        monkeypatch.setattr(device.subprocess, "run", None)  # the second time nothing runs
    assert lines_of(tmp_path / "good.jsonl")[-1]["step"] == "good"


def test_steps_after_the_total_time_are_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(device, "steps", lambda: STEPS)
    monkeypatch.setattr(sys, "argv", ["device.py", f"--out={tmp_path}", "--total=5"])
    device.main()
    assert len(capsys.readouterr().out.splitlines()) == 2 and not list(tmp_path.iterdir())


def test_an_unknown_step_is_named(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["device.py", "--only=A1,A9"])
    with pytest.raises(SystemExit, match="no step A9; --list"):
        device.main()


def test_every_script_of_a_step_exists():
    names = [step.name for step in device.steps()]
    assert len(set(names)) == len(names)
    for step in device.steps():
        assert step.command[0] == "-m" or (device.ROOT / step.command[0]).is_file()
