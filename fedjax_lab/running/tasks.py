"""What became of the clients' tasks in an asynchronous run, for its summary."""

from typing import Any

import numpy as np

from fedjax_lab.engine.input import Simulation
from fedjax_lab.simulation.asynchronous import Schedule, Tasks


def in_summary(simulation: Simulation, played: int) -> dict[str, Any]:
    """The entry `tasks` of a summary after the rounds played, by seed; {} for synchronous runs."""
    of_run = simulation.schedules, simulation.tasks, simulation.task_seconds
    if simulation.schedules is None or not played:
        return {}
    each = zip(simulation.seeds, *(of_seeds or [] for of_seeds in of_run), strict=True)
    return {"tasks": {str(seed): _seed_entry(played, *of_seed) for seed, *of_seed in each}}


def _seed_entry(
    played: int, schedule: Schedule, tasks: Tasks, seconds: np.ndarray
) -> dict[str, Any]:
    ids = schedule.ids[:played]
    staleness = np.arange(played)[:, None] - schedule.version[:played]
    started, received, lost = (
        int(counts[:played].sum()) for counts in (schedule.started, schedule.received, tasks.lost)
    )
    time = schedule.time[played - 1] * len(seconds)
    used = fifths(seconds, np.bincount(ids.ravel(), minlength=len(seconds)))
    by_speed = [float(group.sum() / ids.size) for group in used]
    return {
        "started": started,
        "used": ids.size,
        "lost": lost,
        "dropped": received - ids.size,
        "unfinished": started - received - lost,
        "staleness": {
            "mean": float(staleness.mean()),
            "p90": float(np.percentile(staleness, 90)),
            "max": int(staleness.max()),
        },
        "versions_stored": 1 + int(schedule.new_place[:played].max()),
        "busy": float(tasks.busy[played - 1] / time) if time else None,
        **({"used_by_speed": by_speed} if by_speed else {}),
    }


def fifths(seconds: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    """The clients' values in five groups of about equal size, from the fastest to the slowest.

    [] if all clients are equally fast. seconds: of a task of each client.
    """
    if np.ptp(seconds) <= 1e-6 * np.max(seconds):
        return []
    return np.array_split(np.asarray(values)[np.argsort(seconds, kind="stable")], 5)
