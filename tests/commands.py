"""Helpers that start a run as the command line does, and that read its metrics."""

from pathlib import Path

from absl.testing import flagsaver

from fedjax_lab import main
from fedjax_lab.running.storage import metrics


def call(*arguments):
    """Calls main in this process and returns the exit code."""
    with flagsaver.flagsaver():
        return main.main(["main", *arguments])


def comparable(workdir):
    """The rows of metrics.jsonl without the times, which differ between runs."""
    rows = metrics.read_metrics(Path(workdir) / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
