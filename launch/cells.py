"""Helpers that read the runs of a table's cells and format their numbers."""

from pathlib import Path

import numpy as np

from fedjax_lab.analysis import runs
from fedjax_lab.sweeping import sweep_folder


def ended_well(folder: Path) -> runs.Run | None:
    """The run of a cell; None if it has not ended or has failed."""
    outcome = sweep_folder.ended(folder)
    return None if outcome is None or outcome.code else runs.read(folder)


def spread(values: list[float], places: int = 1) -> str:
    """Format the mean, and the population standard deviation if there are several values."""
    if not values:
        return ""
    std = f" ({np.std(values):.{places}f})" if len(values) > 1 else ""
    return f"{np.mean(values):.{places}f}{std}"
