"""Tests the measurement plan: its steps, how they end, how it resumes, and its results page."""

import fcntl
import json
import signal
import sys
import time

import children
import device_day
import device_page
import device_plan
import pytest
from device_plan import Goal, Step

from fedjax_lab.models import conv

FACTS = {"device": "Toy 9", "devices": 2, "jax": "0.10.2", "driver": "toy 1.2", "date": "today"}


def step(name, code, group="workloads", goal=None):
    return Step(name, group, ("-c", code), goal)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function run(steps, *flags) that returns the printed lines; results are in tmp_path."""
    monkeypatch.setattr(device_day, "find_device", lambda out: FACTS)

    def run(steps, *flags):
        monkeypatch.setattr(device_day, "plan", lambda seconds: steps)
        assert device_day.main([f"--out={tmp_path}", *flags]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def result(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def test_every_step_has_a_unique_name_a_table_and_an_existing_script():
    steps = device_plan.plan(5)
    assert len({s.name for s in steps}) == len(steps)
    assert {s.group for s in steps} == set(device_page.TABLES)
    scripts = {word for s in steps for word in s.command if word.endswith(".py")}
    assert all((device_plan.ROOT / word).is_file() for word in scripts if "=" not in word)
    assert {*device_plan.LIKELY, *device_plan.UNLIKELY} == set(conv.FORMULATIONS)
    names = [s.name for s in steps]
    assert names[:3] == ["check", "A1-whole", "A2"]  # in order of value; the tests come last
    assert {"W5", "W1-central", "A1-chunked8-im2col", "seeds-A1", "CCT-auto"} <= set(names)
    assert "tests.test_tree" in names and steps[-1].group == "tests"


def test_a_step_that_fails_or_times_out_does_not_stop_the_others(run, tmp_path):
    steps = [
        step("raises", "print('note'); raise ValueError('no such kernel')"),
        step("aborts", "import os; print('{\"workload\": 1}', flush=True); os.abort()"),
        step("sleeps", "import time; time.sleep(60)"),
        step("works", "print('hello'); print('{\"workload\": \"W1\"}')"),
    ]
    run(steps, "--limit=2")
    ends = {s.name: result(tmp_path, s.name) for s in steps}
    assert [end["status"] for end in ends.values()] == ["failed", "failed", "out of time", "done"]
    assert ends["raises"]["error"] == "exit code 1: ValueError: no such kernel"
    assert ends["aborts"]["error"].startswith("SIGABRT")
    assert ends["aborts"]["lines"] == [{"workload": 1}]
    assert ends["works"]["lines"] == [{"workload": "W1"}]
    assert "hello" in (tmp_path / "works.log").read_text()
    note = "x.py\njax.errors.JaxRuntimeError: INTERNAL: no\n-----\nFor simplicity, JAX has\n"
    assert device_day.last_line(note) == "jax.errors.JaxRuntimeError: INTERNAL: no"


def test_steps_with_a_result_run_again_only_on_request(run, tmp_path):
    """The same command resumes after the total time is over."""
    counting = f"open('{tmp_path}/count', 'a').write('x')"
    slow = f"import os, time; time.sleep(0 if os.path.exists('{tmp_path}/b.json') else 60)"
    steps = [step("a", counting), step("slow", slow), step("b", counting, group="models")]
    assert run(steps, "--total=2")[-2] == "no time is left; the same command continues"
    assert not (tmp_path / "slow.json").exists() and not (tmp_path / "b.json").exists()
    run(steps, "--only=b")
    run(steps)
    assert result(tmp_path, "slow")["status"] == "done"
    assert (tmp_path / "count").read_text() == "xx"
    run(steps, "--again=models")
    run(steps, "--only=b", "--again=b")
    assert (tmp_path / "count").read_text() == "xxxx"


def test_the_page_shows_the_device_the_measurements_and_the_goals(run, tmp_path):
    def seconds(line):
        return line["total_seconds"]

    numbers = {"workload": "A1", "strategy": "a|b", "seconds_per_round": 0.0123456}
    code = f"print({json.dumps(json.dumps(numbers | {'total_seconds': 19}))})"
    goals = ("fast", code, 20), ("slow", code, 10), ("dies", "import sys; sys.exit(3)", 10)
    steps = [
        step(name, code, goal=Goal(f"{name}, seconds", goal, seconds))
        for name, code, goal in (*goals, ("never", "pass", 1))
    ]
    run(steps, "--only=fast,slow,dies")
    page = (tmp_path / "README.md").read_text()
    for text in (
        "# Measured on 2 x Toy 9",
        "| driver | toy 1.2 |",
        "| fast, seconds | 20 | 19 | met |",
        "| slow, seconds | 10 | 19 | missed |",
        "| dies, seconds | 10 |  | failed |",
        "| never, seconds | 1 |  | not run |",
        "| fast | A1 | a\\|b |  | 0.01235 |",
        "exit code 3",
        "1 of 4 steps have not been run.",
    ):
        assert text in page


def test_list_prints_steps_and_unknown_steps_are_rejected(run, capsys, tmp_path):
    steps = [step("W1", "pass"), step("W2", "pass"), step("R18", "pass", group="models")]
    assert [line.split()[0] for line in run(steps, "--list", "--only=W*")] == ["W1", "W2"]
    assert [line.split()[0] for line in run(steps, "--list", "--only=models")] == ["R18"]
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit, match="unknown step 'W9'; .* workloads, models"):
        run(steps, "--only=W1,W9")
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(SystemExit, match=f"^error: {out}: "):
            device_day.main([f"--out={out}"])


def test_a_folder_accepts_the_results_of_one_device_only(tmp_path, monkeypatch):
    facts = {"device": "Toy 9", "devices": 1, "jax": "0.10.2"}
    monkeypatch.setattr(device_day, "objects", lambda text: [facts])
    monkeypatch.setattr(sys, "executable", "true")
    assert device_day.find_device(tmp_path) == device_day.find_device(tmp_path)
    facts["device"] = "Toy 10"
    with pytest.raises(SystemExit, match="holds results of 1 x Toy 9, jax 0.10.2"):
        device_day.find_device(tmp_path)
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(SystemExit, match="JAX finds no device"):
        device_day.find_device(tmp_path)


def start(folder, code, *flags):
    """Starts the script in a separate process; its steps run these lines of Python."""
    script = (
        "import sys; sys.path.insert(0, 'launch/speed');"
        "import device_day as day; day.find_device = lambda out: %r;"
        "day.plan = lambda seconds: 5000 * [day.Step('only', 'workloads', ('-c', %r))];"
        "sys.exit(day.main(sys.argv[1:]))"
    )
    return children.start(
        "-c", script % (FACTS, code), f"--out={folder}", *flags, cwd=children.ROOT
    )


@pytest.mark.slow
def test_no_step_outlives_a_terminated_script(tmp_path):
    """Nor does a process that the step has started, which holds a lock as long as it lives."""
    hold = f"import fcntl, time; file = open('{tmp_path}/lock', 'w'); fcntl.flock(file, 2);"
    hold += f"open('{tmp_path}/begun', 'w'); time.sleep(60)"
    script = start(
        tmp_path, f'import subprocess, sys; subprocess.run([sys.executable, "-c", {hold!r}])'
    )
    while not (tmp_path / "begun").exists():
        assert script.poll() is None
        time.sleep(0.05)
    script.send_signal(signal.SIGTERM)
    assert script.communicate()[1] == "interrupted; the same command continues\n"
    assert script.returncode == 130
    with open(tmp_path / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits
    listing = start(tmp_path, "pass", "--list")  # exits silently if its reader closes the pipe
    assert listing.stdout.readline().startswith("only")
    listing.stdout.close()
    assert listing.stderr.read() == "" and listing.wait() == 1
