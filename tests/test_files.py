"""Damaged files of runs and sweeps: every command names them and shows the undamaged runs."""

import contextlib
import copy
import importlib.util
import io
import json
import os
import shutil
import struct
import tempfile
import zlib
from pathlib import Path

import optional
import pytest
import run_folders
import toys
from commands import contents
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import complaint
from run_folders import SCORES, refusal, rows_of, write, write_rows

from fedjax_lab.commands import report, sweep, tensorboard
from fedjax_lab.commands.sweep import Outcome, Shared
from fedjax_lab.errors import BadInput
from fedjax_lab.running import runner
from fedjax_lab.running.storage import files, metric_rows
from fedjax_lab.simulation.units import FORMS
from fedjax_lab.sweeping import sweep_folder

RUNS = ("fedavg", "fedprox,mu=0.1")
quick = settings(max_examples=30, deadline=None, derandomize=True, database=None)


def evaluation(seed, after):
    row = run_folders.evaluation(seed, after, 65.0 + seed, 1)
    row["accuracy"]["per_client"] = each = [60.0, None, 70.0 + after]
    return row | {"id": 50.0 + after, "id_per_client": each, "recorded": {"influence": [[1.0]]}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a sweep of two finished runs, what its cells have in common, and its cells."""
    folder = tmp_path_factory.mktemp("whole")
    shared = Shared(toys.write_config(folder, run={"rounds": 4}), seeds=[0, 1])
    cells = sweep.plan(shared, ["fedavg", "fedprox"], {"method.mu": ["0.1"]})
    assert tuple(cells) == RUNS
    sweep.write_plan({}, cells, folder / "out")
    rows = [evaluation(seed, after) for after in (2, 4) for seed in (0, 1)]
    summary = {**toys.SUMMARY, "seeds": [0, 1], **metric_rows.summarize(rows, [0, 1])}
    for name, cell in cells.items():
        metric_rows.make_folder(folder / "out" / name)
        metric_rows.write_json(folder / "out" / name / "config.json", cell.saved)
        metric_rows.write_json(folder / "out" / name / "summary.json", summary)
        metric_rows.append(folder / "out" / name / "metrics.jsonl", rows)
    return folder / "out", shared, cells


@contextlib.contextmanager
def copied(whole):
    """Yields a copy of the sweep's folder, which may be damaged."""
    with tempfile.TemporaryDirectory() as name:
        yield shutil.copytree(whole[0], Path(name) / "out")


def call(main, *arguments):
    """Returns the exit code, stdout and stderr of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


# Random damage.

STRANGE = st.sampled_from(
    [None, True, -1, 2.5, "text", "", [], {}, [[]], float("nan"), float("inf"), 10**400]
)


def places(value, at=()):
    """Yields the paths to all parts of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inner:
        yield (*at, key)
        if isinstance(each, (dict, list)):
            yield from places(each, (*at, key))


def altered(value, path, new, drop):
    """Returns a copy of the value with one part replaced or removed."""
    value = copy.deepcopy(value)
    *before, last = path
    part = value
    for key in before:
        part = part[key]
    if drop:
        del part[last]
    else:
        part[last] = new
    return value


@st.composite
def damage(draw, names):
    """Draws the name of a file, and a function that damages the file at a path."""
    name = draw(st.sampled_from(names))
    kind = draw(st.sampled_from(["part", "drop", "whole", "cut", "bytes", "folder", "pipe"]))
    new, place = draw(STRANGE), draw(st.integers(0, 10**6))
    noise = draw(st.binary(max_size=20))

    def do(path):
        lines = name.endswith("jsonl")
        old = path.read_bytes() if path.exists() else b"exit code 1\nfailed\n"
        if kind in ("folder", "pipe"):
            path.unlink(missing_ok=True)
            path.mkdir() if kind == "folder" else os.mkfifo(path)
        elif kind == "cut":
            path.write_bytes(old[: place % len(old)])
        elif kind == "bytes":
            at = place % len(old)
            path.write_bytes(old[:at] + noise + old[at + len(noise) :])
        elif kind == "whole" or not name.endswith(("json", "jsonl")):
            path.write_text(json.dumps(new))
        else:
            value = [json.loads(line) for line in old.splitlines()] if lines else json.loads(old)
            path_in = list(places(value))[place % len(list(places(value)))]
            value = altered(value, path_in, new, kind == "drop")
            text = "".join(json.dumps(each) + "\n" for each in value) if lines else None
            path.write_text(text if lines else json.dumps(value))

    return name, do


RUN_FILES = ["config.json", "metrics.jsonl", "summary.json"]


@quick
@given(harm=damage(RUN_FILES))
def test_reports_and_tensorboard_show_the_undamaged_runs(whole, harm):
    name, do = harm
    with copied(whole) as out:
        do(out / RUNS[0] / name)
        before = contents(out)
        code, shown, err = call(report.main, out)
        assert code == 0 and not err and "FedProx" in shown
        assert call(report.main, out, "--way=max_per_domain", "--target=60", "--format=csv")[0] == 0
        code, _, err = call(report.main, out / RUNS[0])
        assert code == 0 or (code == 2 and err.startswith("error: ") and err.count("\n") == 1)
        if importlib.util.find_spec("tensorboardX"):
            code, shown, err = call(tensorboard.main, out, f"--logdir={out.parent / 'log'}")
            assert code == 0 and err.count("\n") <= 1 and f"in {out.parent / 'log'}" in shown
            assert shown.startswith("1 run " if err else "2 runs ")
        assert contents(out) == before


@quick
@given(harm=damage([*RUN_FILES, "error.txt"]))
def test_a_sweep_shows_the_undamaged_cells(whole, harm):
    name, do = harm
    _, shared, cells = whole
    with copied(whole) as out:
        if name == "error.txt":
            (out / RUNS[0] / "summary.json").unlink()
        do(out / RUNS[0] / name)
        before = contents(out)
        with contextlib.suppress(BadInput):  # a config of another run, or error.txt is a folder
            sweep.check_folder(shared, cells, out)
        assert (
            sweep_folder.ended(out / RUNS[0]) in (None, Outcome(0), Outcome(3))
            or name == "error.txt"
        )
        assert sweep_folder.ended(out / RUNS[1]) == Outcome(0)
        lines = sweep.table(cells, ["method.mu"], out).splitlines()
        assert lines[-1].split()[:3] == ["fedprox", "0.1", "65.50"]
        assert contents(out) == before


@quick
@given(harm=damage(["sweep.json"]))
def test_a_damaged_plan_only_raises_bad_input_and_changes_no_file(whole, harm):
    _, shared, cells = whole
    with copied(whole) as out:
        harm[1](out / "sweep.json")
        before = contents(out)
        with contextlib.suppress(BadInput):
            sweep.check_folder(shared, cells, out)
        assert contents(out) == before


# Error messages.


def test_the_error_names_the_damaged_file_and_the_reason(tmp_path):
    path = tmp_path / "config.json"
    for text, reason in {
        b"": "it is empty",
        b'{"a": ': "it is truncated or not JSON",
        b'{"a": "\xff"}': "not text in UTF-8",
        b"[]": "it must be a JSON object, not []",
        b"{}": "it lacks data, method, partition, run, seeds",
        b"[" * 10**5: "nested too deep",
        b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}": "nested too deep",
        b'{"data":{"name":{}},"partition":{},"method":{"name":""},"run":{},"seeds":[0]}': (
            "data.name must be text"
        ),
        b'{"a": ' + b"9" * 5000 + b"}": "integer string conversion",
    }.items():
        path.write_bytes(text)
        with pytest.raises(files.Damaged) as caught:
            files.read_json(path, files.CONFIG)
        message = str(caught.value)
        assert message.startswith(f"{path} cannot be used: ") and reason in message
    missing = tmp_path / "x"  # a missing file is not an error
    assert files.read_json(missing, files.CONFIG) is None is files.read_text(missing)
    assert files.read_json(missing / "y", files.CONFIG) is None
    assert files.read_rows(missing, files.EVALUATION) == []


def test_an_error_names_the_position_in_a_json_value():
    row = evaluation(0, 2)
    wrong = {**row, "accuracy": {**row["accuracy"], "per_client": [60.0, "60"]}}
    new = {**row, "new": 91.5, "new_per_client": [91.5, None], "new_loss": None}
    files.check(new, files.EVALUATION)
    files.check({"more": None}, {"last?": files.NUMBER})
    for value, shape, error in (
        (wrong, files.EVALUATION, "accuracy.per_client[1] must be a finite number or null, not '6"),
        ({**new, "new": None}, files.EVALUATION, "new must be a finite number"),
        ({**new, "new_per_client": []}, files.EVALUATION, "new_per_client must be a list with at"),
        ({"round": True}, {"round": files.COUNT}, "round must be a whole number >= 0, not True"),
        ({"a": {"b": None}}, {"*": {"*": files.NUMBER}}, "a.b must be a finite"),
        ([], [files.COUNT], "it must be a list with at least one value, not []"),
    ):
        with pytest.raises(ValueError) as caught:
            files.check(value, shape)
        assert str(caught.value).startswith(error)


def test_only_a_truncated_last_line_is_not_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(evaluation(0, after)) for after in (2, 4, 6)]
    for cut in (0, 1, 30, len(lines[2]) - 1):
        path.write_text("\n".join([*lines[:2], lines[2][:cut]]))
        assert [row["round"] for row in metric_rows.read_metrics(path)] == [2, 4]
    path.write_text("\n".join(lines))
    assert len(metric_rows.read_metrics(path)) == 3
    path.write_text("\n".join([lines[0], lines[1][:30], lines[2]]) + "\n")
    before = path.read_bytes()
    message = complaint(metric_rows.verified, path, [(2, 0)], 0)
    assert "line 2: it is truncated or not JSON" in message
    assert path.read_bytes() == before
    path.write_text("\n".join([lines[0], '{"round": 1, "seed": 0}', ""]))
    assert "line 2: it lacks bytes_down" in complaint(metric_rows.read_metrics, path)
    check_same_measurements(path, evaluation(0, 2), evaluation(0, 4), "id")
    rows = [without_accuracy(evaluation(0, after)) for after in (2, 4)]
    check_same_measurements(path, *rows, "id_rmse")


def check_same_measurements(path, first, other, key):
    """The second row has another metric, which a resumed run may add, and lacks the key."""
    del other[key]
    path.write_text("\n".join([json.dumps(first), json.dumps(other | {"f1": {"mean": 1}}), ""]))
    error = complaint(metric_rows.read_metrics, path)
    assert "round 4 does not have the measurements of round 2" in error
    more, less = first | {"round": 4, "f1": {"mean": 1}}, other | {"round": 1}
    path.write_text("\n".join([*map(json.dumps, (less, first, more)), ""]))
    assert len(metric_rows.read_metrics(path)) == 3  # later rows may have more


def without_accuracy(row):
    """The row as that of a regression."""
    row["rmse"] = row.pop("accuracy")
    return {f"{key}_rmse" if key in FORMS else key: value for key, value in row.items()}


def test_a_comparison_mentions_a_damaged_run_in_every_format(whole):
    with copied(whole) as out:
        (out / RUNS[0] / "metrics.jsonl").write_text("{}\n")
        note = f"{out / RUNS[0] / 'metrics.jsonl'} cannot be used: line 1: it lacks"
        for form in ("terminal", "markdown", "latex", "html"):
            code, shown, err = call(report.main, out, f"--format={form}")
            assert code == 0 and not err and "left out" in shown
        assert note in call(report.main, out)[1]
        assert call(report.main, out, "--format=csv")[2].startswith(note)
        (out / RUNS[1] / "config.json").write_text("")
        code, _, err = call(report.main, out)
        assert code == 2 and err.startswith(f"error: {note}") and err.count("\n") == 1


def test_tensorboard_follows_a_run_again_after_its_repair(whole, capsys):
    optional.module("tensorboardX")
    with copied(whole) as out:
        path = out / RUNS[0] / "metrics.jsonl"
        undamaged = path.read_text()
        path.write_text("{}\n")
        written = tensorboard.update([out], out.parent / "log", {})
        written = tensorboard.update([out], out.parent / "log", written)
        assert capsys.readouterr().err.count("left out") == 1
        assert not (out.parent / "log" / RUNS[0]).exists()
        path.write_text(undamaged)
        tensorboard.update([out], out.parent / "log", written)
        assert not capsys.readouterr().err
        assert list((out.parent / "log" / RUNS[0] / "seed-1").iterdir())


def test_a_cell_with_an_unreadable_error_file_is_retried(tmp_path, monkeypatch):
    for text in ("", "exit code", "exit code x\n", "\0" * 40, "{}", "exit code 1"):
        (tmp_path / "error.txt").write_text(text)
        assert sweep_folder.failure(tmp_path) is sweep_folder.ended(tmp_path) is None
        assert sweep.shown(tmp_path) == "not finished"
    (tmp_path / "error.txt").write_bytes(b"exit code -9\nkilled \xff\n")
    assert sweep_folder.failure(tmp_path) == Outcome(-9, "killed �")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        sweep.record(Outcome(1, "second"), tmp_path)
    assert sweep_folder.failure(tmp_path) == Outcome(-9, "killed �")


@pytest.mark.slow
def test_a_damaged_cell_does_not_stop_the_other_cells(whole, monkeypatch):
    """The sweep's exit code is 1, and the other cell is shown."""
    _, shared, cells = whole

    def run(job, folder, resume, **options):
        files.read_json(folder / "config.json", files.CONFIG)
        files.read_json(folder / "summary.json", files.FINISHED)

    monkeypatch.setattr(sweep.experiment, "load_data", lambda config: None)
    monkeypatch.setattr(sweep.experiment, "build", lambda *of: None)
    monkeypatch.setattr(runner, "run", run)
    arguments = [f"--config={shared.path}", "--methods=fedavg,fedprox", "--grid=method.mu=0.1"]
    for name in ("summary.json", "config.json"):
        with copied(whole) as out:
            (out / RUNS[0] / name).write_text("")
            words = *arguments, "--seeds=0,1", f"--out={out}"
            code, printed, err = call(sweep.main, "sweep", *words)
            assert code == 1 and not err, err
            assert f"failed: {out / RUNS[0] / name} cannot be used: it is empty" in printed
            assert "fedprox  0.1        65.50 +- 0.71" in printed
    with copied(whole) as out:
        (out / RUNS[1] / "error.txt").mkdir()  # this is rejected before any run
        message = complaint(sweep.check_folder, shared, cells, out)
        assert message == f"{out / RUNS[1] / 'error.txt'} is a folder; remove it"


# Rows of metrics.jsonl that no run writes, as `report` and `tensorboard` meet them.


FORMATS = report.FORMATS


@pytest.fixture
def run(tmp_path):
    return write(tmp_path / "run", {0: SCORES["fedavg"][0]})


def changed(folder, change):
    rows = rows_of(folder)
    write_rows(folder, change(rows) or rows)
    return folder


def without_clients(rows):
    for row in rows:
        del row["accuracy"]["per_client"]


def unknown_clients(rows):
    for row in rows:
        row["accuracy"]["per_client"] = [None] * 3


@pytest.mark.parametrize("change", [without_clients, unknown_clients])
@pytest.mark.parametrize("form", FORMATS)
def test_a_report_needs_no_values_of_clients(form, change, run, capsys):
    """The maximum of each domain exists without them; the maximum of each client does not."""
    arguments = [str(changed(run, change)), f"--format={form}"]
    assert report.main(arguments) == 0
    assert report.main([*arguments, "--way=max_over_rounds"]) == 0
    assert capsys.readouterr().err == ""
    ways = metric_rows.pick_rounds(metric_rows.read_metrics(run / "metrics.jsonl"))
    if change is without_clients:
        assert "max_per_domain" not in ways
    else:
        assert ways["max_per_domain"] == {"domains": {"north": 69, "south": 71}}


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: [*rows, rows[-1]],
        lambda rows: [rows[0], *rows],
        lambda rows: rows[::-1],
        lambda rows: [*rows, rows[0]],
    ],
)
def test_a_round_that_occurs_twice_or_too_late_is_refused(change, run, capsys):
    message = refusal(capsys, changed(run, change))
    assert "of seed 0" not in message and "seed 0, which is a duplicate or out of order" in message
    assert tensorboard.main([str(run), f"--logdir={run.parent / 'log'}"]) == 2
    assert "is a duplicate or out of order" in capsys.readouterr().err


def test_an_evaluation_before_the_first_round_is_refused(run, capsys):
    message = refusal(capsys, changed(run, lambda rows: rows[0].update(round=0)))
    assert "round must be a whole number >= 1" in message


def png(width, height):
    """The beginning of a PNG file that declares this size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(bytes(9))
    chunks = [
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in (header, data)
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (png(30_000, 30_000), "has too many pixels"),
        (png(10_000, 10_000), "has too many pixels"),
        (png(0, 5), "is not a complete image file"),
        (b"\xff\xd8\xff a JPEG", "is not a complete image file"),
    ],
)
def test_a_picture_of_a_false_size_is_left_out(content, problem, run, capsys):
    optional.module("tensorboardX")
    (run / "partition.png").write_bytes(content)
    assert tensorboard.main([str(run), f"--logdir={run.parent / 'log'}"]) == 0
    assert capsys.readouterr().err == f"skipped {run / 'partition.png'}, which {problem}\n"
