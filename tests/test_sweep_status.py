"""Checks the state of a sweep, which is read from its folder alone."""

import json
import os

import finished_cells
import pytest
import toys
from children import ROOT
from processes_beside import another_process

from fedjax_lab.commands import sweep
from fedjax_lab.running.storage import lock, metric_rows
from fedjax_lab.sweeping import sweep_folder, sweep_plan, sweep_status
from fedjax_lab.sweeping.sweep_plan import Shared

METRIC = [("run.metrics", "macro_f1")]
QUICK = Shared(str(ROOT / "configs/quickstart.py"), seeds=[0, 1])
METHODS = ["fedavg", "fedprox", "moon", "fedbn", "scaffold", "local"]


def row(rounds, seconds):
    return {**toys.SCORES, "round": rounds, "seed": 0, "bytes_up": 0, "bytes_down": 0} | {
        "seconds": seconds
    }


@pytest.fixture
def out(tmp_path):
    """A sweep of 20 rounds with a done, diverged, failed and stopped cell, and two waiting ones."""
    cells = sweep_plan.plan(QUICK, METHODS, {})
    sweep_folder.write_plan({}, cells, tmp_path)
    times = {"seconds": 30.0, "compile_seconds": 10.0}
    finished_cells.finish(cells["fedavg"], tmp_path, {0: 80.0, 1: 80.0}, **times)
    sweep_folder.record(sweep_folder.Outcome(3, "in round 2"), tmp_path / "fedprox")
    failed = sweep_folder.Outcome(1, "Traceback\nRuntimeError: no memory")
    sweep_folder.record(failed, tmp_path / "moon")
    metric_rows.make_folder(tmp_path / "fedbn")
    metric_rows.write_json(tmp_path / "fedbn/config.json", cells["fedbn"].saved)
    metric_rows.append(tmp_path / "fedbn/metrics.jsonl", [row(5, 10.0)])
    return tmp_path


def states(out):
    return {status.name: status for status in sweep_status.read(out)}


def tree(folder):
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def test_the_state_of_each_cell_is_read_without_writing(out):
    before = tree(out)
    each = states(out)
    expected = ["done", "diverged", "failed", "stopped", "waiting", "waiting"]
    assert [each[name].state for name in METHODS] == expected
    assert (each["fedavg"].played, each["fedavg"].rounds) == (20, 20)
    assert (each["fedbn"].played, each["fedbn"].rounds) == (5, 20)
    assert each["moon"].said == "RuntimeError: no memory" and each["fedavg"].said == "80.00 +- 0.00"
    assert tree(out) == before  # nothing is written
    (out / "fedavg/summary.json").write_text("{")
    status = states(out)["fedavg"]
    assert status.state == "failed" and "summary.json cannot be used" in status.said


def test_a_run_is_running_while_its_folder_is_locked(out):
    """A lock of another process is detected but not taken; a kill leaves the file, not the lock."""
    with lock.owned(out / "fedbn"):
        assert states(out)["fedbn"].state == "running"
        with lock.owned(out / "fedbn"):  # the owner still holds the lock
            pass
    assert states(out)["fedbn"].state == "stopped"
    with another_process(out / "fedbn" / lock.LOCK):
        assert states(out)["fedbn"].state == "running"
    assert (out / "fedbn" / lock.LOCK).exists() and states(out)["fedbn"].state == "stopped"


def test_the_table_lists_all_runs_and_estimates_the_time_left(out, capsys):
    assert sweep.main(["sweep", "--status", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["state", "run", "round", "since"]
    shown = ["stopped", "failed", "diverged", "waiting", "waiting", "done"]
    assert [line.split()[0] for line in lines[2:8]] == shown
    assert "RuntimeError: no memory" in lines[3]
    assert lines[9] == "6 runs: 1 stopped, 1 failed, 1 diverged, 2 waiting, 1 done"
    # 40 s for 20 rounds, 10 s for 5: 2 s a round; 15 + 20 + 2 * 20 rounds are left.
    assert lines[10].startswith("no command is running this sweep; repeat its command to continue")
    assert lines[10].endswith("about 2 min left at the pace so far, 1 run at a time")


def test_the_numbers_have_the_heading_of_their_metric(out, capsys):
    assert sweep_folder.heading([out / "local"]) == "accuracy, %"  # it has not begun
    path = out / "fedavg/summary.json"
    summary = json.loads(path.read_text())
    for row in summary["last"]["per_seed"].values():
        row["rmse"] = {"mean": row.pop("accuracy")["mean"] / 1000}
    path.write_text(json.dumps(summary))
    assert sweep_folder.heading([out / "fedavg", out / "local"]) == "RMSE"
    assert sweep.main(["sweep", "--status", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("RMSE (or what went wrong)")
    assert "0.0800 +- 0.0000" in lines[7]


def test_the_closing_table_has_a_column_for_each_metric_of_the_config(out):
    path = out / "fedavg/summary.json"
    summary = json.loads(path.read_text())
    for row in summary["last"]["per_seed"].values():
        row["macro_f1"] = {"mean": 70.0}
    path.write_text(json.dumps(summary))
    cells = sweep_plan.plan(QUICK._replace(overrides=METRIC), METHODS, {})
    header, *_ = lines = sweep.table(cells, [], out).splitlines()
    assert header.split("  ")[-1] == "macro F1, %"
    of = {line.split()[0]: line for line in lines}
    assert of["fedavg"].split()[1:] == "80.00 +- 0.00 70.00 +- 0.00".split()
    assert of["fedprox"].split() == ["fedprox", "diverged"]


def test_the_estimated_time_left_before_during_and_after_the_runs(out):
    each = states(out)
    for name in ("fedbn", "local"):
        each[name] = each[name]._replace(state="running")
    each = list(each.values())
    said = "about 1 min left at the pace so far, 2 runs at a time"
    assert sweep_status.text(each, 1, 0.0).endswith(said)
    ended = [s._replace(state="done") for s in each]
    last = "all runs planned so far have ended"
    assert sweep_status.text(ended, 0, 0.0).endswith(last)
    fresh = [s._replace(state="waiting", seconds=0.0, played=0) for s in each]
    assert "no estimate of the time left yet" in sweep_status.text(fresh, 0, 0.0)
    durations = [sweep_status.duration(s) for s in (0, 59, 90, 3600, 200_000)]
    assert durations == ["0 s", "59 s", "2 min", "1 h 0 min", "2 d 8 h"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--status", "{tmp}"], "holds no sweep: there is no sweep.json in it"),
        (["--status", "{tmp}", "--out=a"], "unexpected argument '--out=a'"),
        (["--status=gx://a/b"], "gx://"),
    ],
)
def test_bad_input_is_a_one_line_error(arguments, message, tmp_path, capsys):
    arguments = [argument.format(tmp=tmp_path) for argument in arguments]
    assert sweep.main(["sweep", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert os.listdir(tmp_path) == []
