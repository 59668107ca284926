"""What the tables of launch scripts read of the runs in their cells."""

from pathlib import Path

import numpy as np

from fedjax_lab.analysis import runs
from fedjax_lab.running import sweep_folder


def ended_well(folder: Path) -> runs.Run | None:
    """The run of a cell; None where it has not ended, or not well."""
    outcome = sweep_folder.ended(folder)
    return None if outcome is None or outcome.code else runs.read(folder)


def measures(folder: Path, way: str) -> list[dict[str, float]]:
    """The measures of each seed; none where the run has not ended well.

    way: how the round is chosen: see fedjax_lab.report.
    """
    run = ended_well(folder)
    if run is None:
        return []
    seeds = {seed: [r for r in run.rows if r["seed"] == seed] for seed in run.seeds}
    return list(runs.measured(runs.Row(folder.name, [run], seeds), way).values())


def spread(values: list[float], places: int = 1) -> str:
    """Mean, and the population standard deviation in brackets where there are several values."""
    if not values:
        return ""
    std = f" ({np.std(values):.{places}f})" if len(values) > 1 else ""
    return f"{np.mean(values):.{places}f}{std}"
