"""What a run promises of privacy, as its rows, its summary and its last lines tell it.

Epsilon after some rounds takes dp-accounting some tenths of a second. A thread computes it for all
evaluations that are to come, in their order, while the rounds are played.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedjax_lab.experiment import Experiment, guarantee
from fedjax_lab.transforming import is_private
from fedjax_lab.transforms.guarantee import Guarantee


@contextlib.contextmanager
def told_in_rows(
    experiment: Experiment, rounds: Sequence[int]
) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Gives a function: number of rounds -> what a row says of privacy after them.

    These are `epsilon`, None where it is infinite, and `delta`; nothing where the run is not
    private. rounds: after which there are evaluations.
    """
    promised = guarantee(experiment)
    if promised is None:
        told = {"epsilon": None} if is_private(experiment.config) else {}
        yield lambda played: told
        return
    worker = ThreadPoolExecutor(1)
    ahead = {number: worker.submit(_epsilon, promised, number) for number in rounds}
    try:
        yield lambda played: {"epsilon": ahead[played].result(), "delta": promised.delta}
    finally:
        worker.shutdown(wait=False, cancel_futures=True)


def in_summary(experiment: Experiment, rows: Sequence[dict], played: int) -> dict[str, Any]:
    """The part `privacy` of a summary; nothing where the run is not private.

    `full` counts by seed the rounds whose Poisson cohort had no place left, as the rows of the
    newest evaluation have it. rows: of all evaluations. played: how many rounds were.
    """
    if not is_private(experiment.config):
        return {}
    told: dict[str, Any] = {"epsilon": None, "noise": 0.0}
    promised = guarantee(experiment)
    if promised is not None:
        told = {
            "epsilon": _epsilon(promised, played),
            "delta": promised.delta,
            "unit": promised.unit,
            "neighbors": promised.neighbors,
            "noise": promised.noise,
        }
    newest = {str(row["seed"]): row.get("recorded", {}) for row in rows}
    full = {seed: of["full_cohorts"] for seed, of in newest.items() if "full_cohorts" in of}
    return {"privacy": {**told, **({"full": full} if full else {})}}


def _epsilon(promised: Guarantee, rounds: int) -> float | None:
    """Epsilon after so many rounds; None where it is infinite."""
    (value,) = promised.epsilons([rounds])
    return value if math.isfinite(value) else None
