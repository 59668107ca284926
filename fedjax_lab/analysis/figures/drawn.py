"""The result of an analysis for the command `fedjax_lab.figures`, and shared readers of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from fedjax_lab.errors import BadInput
from fedjax_lab.running.storage import metric_rows


class Drawn(NamedTuple):
    """The results of one analysis."""

    pictures: dict[str, Figure]  # by file name without extension
    numbers: dict[str, Any] | None = None  # the content of numbers.json; None: no such file
    text: str = ""  # text to print


def by_name(workdirs: Sequence[Path]) -> dict[str, Path]:
    """The folders of runs by name. Raises BadInput if two folders have the same name."""
    named = {workdir.name: workdir for workdir in workdirs}
    if len(named) < len(workdirs):
        names = [workdir.name for workdir in workdirs]
        shared = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"several folders have the name {shared!r}; rename all but one of them")
    return named


def rows_of(workdir: Path, seed: int | None = None) -> list[dict]:
    """The evaluations of one seed of a run, by default of its first one; [] if there are none."""
    rows = metric_rows.read_metrics(workdir / "metrics.jsonl")
    return [row for row in rows if row["seed"] == (rows[0]["seed"] if seed is None else seed)]


def recorded(rows: Sequence[dict], name: str) -> dict[int, dict]:
    """What a method recorded in its rounds, by round; only the records that have this name."""
    return {row["round"]: row["recorded"] for row in rows if name in row.get("recorded", {})}
