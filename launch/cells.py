"""Helpers that read the runs of a table's cells and format their numbers."""

from pathlib import Path

import numpy as np

from fedjax_lab.analysis import runs
from fedjax_lab.running import sweep_folder


def ended_well(folder: Path) -> runs.Run | None:
    """The run of a cell; None if it has not ended or has failed."""
    outcome = sweep_folder.ended(folder)
    return None if outcome is None or outcome.code else runs.read(folder)


def measures(folder: Path, way: str) -> list[dict[str, float]]:
    """One dict of measures for each seed; an empty list if the run has not ended or has failed.

    way: rule that chooses the reported round; see --way of fedjax_lab.report.
    """
    run = ended_well(folder)
    if run is None:
        return []
    seeds = {seed: [r for r in run.rows if r["seed"] == seed] for seed in run.seeds}
    return list(runs.measured(runs.Row(folder.name, [run], seeds), way).values())


def spread(values: list[float], places: int = 1) -> str:
    """Format the mean, and the population standard deviation if there are several values."""
    if not values:
        return ""
    std = f" ({np.std(values):.{places}f})" if len(values) > 1 else ""
    return f"{np.mean(values):.{places}f}{std}"
