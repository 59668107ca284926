"""What became of the clients' tasks in an asynchronous run, for its summary."""

from typing import Any

import numpy as np

from fedjax_lab.engine.input import Seed, Simulation


def in_summary(simulation: Simulation, played: int) -> dict[str, Any]:
    """The entry `tasks` of a summary after the rounds played, by seed; {} for synchronous runs."""
    if simulation.seeds[0].timeline is None or not played:
        return {}
    return {"tasks": {str(seed.number): _seed_entry(played, seed) for seed in simulation.seeds}}


def _seed_entry(played: int, seed: Seed) -> dict[str, Any]:
    assert seed.timeline is not None and seed.task_seconds is not None
    (schedule, tasks), seconds = seed.timeline, seed.task_seconds
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
