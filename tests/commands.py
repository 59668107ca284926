"""Helpers that start a run as the command line does, and that read its metrics."""

from pathlib import Path

from absl.testing import flagsaver

from fedjax_lab import main
from fedjax_lab.running.storage import metric_rows


def call(*arguments):
    """Calls main in this process and returns the exit code."""
    with flagsaver.flagsaver():
        return main.main(["main", *arguments])


def refusal(capsys, *arguments):
    """The one-line error with which main rejects the arguments."""
    capsys.readouterr()
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error


def without_clock(rows):
    """The rows of metrics without the times, which differ between runs."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def comparable(workdir):
    """The rows of metrics.jsonl without the times."""
    return without_clock(metric_rows.read_metrics(Path(workdir) / "metrics.jsonl"))


def contents(folder):
    """The bytes of each file."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
