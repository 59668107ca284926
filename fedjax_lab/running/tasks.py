"""What became of the clients' tasks in an asynchronous run, for its summary."""

from typing import Any

import numpy as np

from fedjax_lab.engine.input import Simulation
from fedjax_lab.simulation.asynchronous import Schedule, Tasks, num_places
from fedjax_lab.simulation.clock import Pace


def in_summary(simulation: Simulation) -> dict[str, Any]:
    """The entry `tasks` of a summary, by seed; {} if rounds are synchronous."""
    if simulation.schedules is None or simulation.tasks is None or simulation.paces is None:
        return {}
    each = zip(simulation.schedules, simulation.tasks, simulation.paces, strict=True)
    of_seeds = [_of_seed(*of_seed) for of_seed in each]
    return {"tasks": {str(seed): of for seed, of in zip(simulation.seeds, of_seeds, strict=True)}}


def _of_seed(schedule: Schedule, tasks: Tasks, pace: Pace) -> dict[str, Any]:
    staleness = np.arange(len(schedule.ids))[:, None] - schedule.version
    of_fastest, *_, of_slowest = fifths(np.asarray(pace.compute), tasks.of_clients)
    return {
        "started": tasks.started,
        "used": int(schedule.ids.size),
        "lost": tasks.lost,
        "dropped": tasks.dropped,
        "unfinished": tasks.unfinished,
        "staleness": {
            "mean": float(staleness.mean()),
            "p90": float(np.percentile(staleness, 90)),
            "max": int(staleness.max()),
        },
        "versions_stored": num_places([schedule]),
        "busy": tasks.busy,
        "used_of_fastest_fifth": float(of_fastest.sum() / schedule.ids.size),
        "used_of_slowest_fifth": float(of_slowest.sum() / schedule.ids.size),
    }


def fifths(seconds: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    """The clients' values in five groups of about equal size, from the fastest to the slowest."""
    return np.array_split(np.asarray(values)[np.argsort(seconds, kind="stable")], 5)
