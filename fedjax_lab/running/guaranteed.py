"""Computes the privacy guarantee of a run for its metrics rows and its summary.

The package dp-accounting takes some tenths of a second to compute one epsilon. A thread therefore
computes it for all upcoming evaluations, in their order, while the rounds are played.
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
    """Yields a function: number of rounds -> the privacy entries of a metrics row.

    The entries are `epsilon` (None if it is infinite) and `delta`; there are none if the run is not
    private.

    Args:
      experiment: the experiment of the run.
      rounds: the numbers of rounds after which there will be an evaluation.
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
    """The entry `privacy` of a summary; {} if the run is not private.

    Its `full` is the number of rounds whose Poisson cohort had its maximum size, by seed, taken
    from the newest evaluation.

    Args:
      experiment: the experiment of the run.
      rows: the rows of all evaluations.
      played: the number of rounds played.
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
    """Epsilon after this number of rounds; None if it is infinite."""
    (value,) = promised.epsilons([rounds])
    return value if math.isfinite(value) else None
