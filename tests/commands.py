"""A run started as by the command line, and its metrics."""

from pathlib import Path

from absl.testing import flagsaver

from fedjax_lab import main
from fedjax_lab.running import metrics


def call(*arguments):
    """main in this process; returns the exit code."""
    with flagsaver.flagsaver():
        return main.main(["main", *arguments])


def comparable(workdir):
    """The metrics rows without the clock."""
    rows = metrics.read_metrics(Path(workdir) / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
