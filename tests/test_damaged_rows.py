"""Rows of metrics.jsonl that no run writes, as `report` and `tensorboard` meet them."""

import json
import struct
import zlib

import optional
import pytest
from run_folders import SCORES, refusal, write

from fedjax_lab.commands import report, sweep, tensorboard
from fedjax_lab.running.storage import metrics

FORMATS = report.FORMATS


@pytest.fixture
def run(tmp_path):
    return write(tmp_path / "run", {0: SCORES["fedavg"][0]})


def changed(folder, change):
    file = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = change(rows) or rows
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
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
    ways = metrics.pick_rounds(metrics.read_metrics(run / "metrics.jsonl"))
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


@pytest.mark.parametrize("seeds", ["0,0", "0-2,1", "3,4,3"])
def test_a_sweep_refuses_a_seed_that_is_given_twice(seeds, tmp_path, capsys):
    words = ["sweep", "--config=quickstart", f"--out={tmp_path / 's'}", f"--seeds={seeds}"]
    assert sweep.main(words) == 2
    message = capsys.readouterr().err
    assert "is given more than once" in message and message.count("\n") == 1
    assert not (tmp_path / "s").exists()
