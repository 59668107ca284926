"""Computes the privacy guarantee of a run for its metrics rows and its summary.

The package dp-accounting takes some tenths of a second to compute one epsilon. A thread therefore
computes it for all upcoming evaluations, in their order, while the rounds are played.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from fedjax_lab.experiment.experiment import Experiment, guarantee
from fedjax_lab.experiment.transforming import is_private
from fedjax_lab.transforms.guarantee import Guarantee

LARGE = 0.01  # from here on a delta is too likely a failure for a guarantee


def remark(experiment: Experiment) -> str:
    """A remark, before training, on why a run's guarantee is worthless; "" if it is not.

    The noise exceeds the signal if the sum of all noise is longer than the sum of all updates can
    be: sigma S sqrt(d T) / m > S T, for T rounds, m clients in each, and d parameters.
    """
    promised, simulation = guarantee(experiment), experiment.simulation
    if promised is None:
        return ""
    says, one = [], promised.unit
    sizes = np.concatenate([seed.federation.train.count for seed in simulation.seeds])
    number = int(sizes.max()) if one == "example" else len(simulation.seeds[0].training.train)
    if promised.delta > 1 / number or promised.delta >= LARGE:
        says.append(
            f"a delta of {promised.delta:.2g} for {number:,} {one}s is no guarantee, because it is"
            f" the probability with which one {one} may be revealed completely; it should be far"
            f" below {min(LARGE, 1 / number):.2g} (config.privacy.delta; its default needs more"
            f" {one}s)"
        )
    if (length := _noise_length(experiment, promised)) > 1:
        says.append(
            f"the noise of all rounds together is {length:.2g} times as long as the longest"
            " possible sum of updates, so that the model will hardly learn; take more clients in a"
            " round (config.run.cohort), a smaller model or a larger epsilon"
        )
    return f"privacy: {'; '.join(says)}" if says else ""


def _noise_length(experiment, promised):
    """The norm of the noise of all rounds, relative to the largest norm of the sum of updates.

    It is 0 where the noise of different rounds or steps is not independent noise in their mean.
    """
    m, rounds = experiment.simulation.plan.cohort, experiment.simulation.plan.rounds
    noise = {"central": promised.noise / m, "adaptive": promised.noise / m}
    noise |= {"local": promised.noise / math.sqrt(m)}
    shapes = jax.eval_shape(experiment.task.init, jax.random.key(0)).params
    d = sum(a.size for a in jax.tree.leaves(shapes))
    return noise.get(experiment.config.privacy.name, 0.0) * math.sqrt(d / rounds)


@contextlib.contextmanager
def stated_in_rows(
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
        stated = {"epsilon": None} if is_private(experiment.config) else {}
        yield lambda played: stated
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
    stated: dict[str, Any] = {"epsilon": None, "noise": 0.0}
    promised = guarantee(experiment)
    if promised is not None:
        stated = {
            "epsilon": _epsilon(promised, played),
            "delta": promised.delta,
            "unit": promised.unit,
            "neighbors": promised.neighbors,
            "noise": promised.noise,
        }
    newest = {str(row["seed"]): row.get("recorded", {}) for row in rows}
    full = {seed: of["full_cohorts"] for seed, of in newest.items() if "full_cohorts" in of}
    return {"privacy": {**stated, **({"full": full} if full else {})}}


def _epsilon(promised: Guarantee, rounds: int) -> float | None:
    """Epsilon after this number of rounds; None if it is infinite."""
    (value,) = promised.epsilons([rounds])
    return value if math.isfinite(value) else None
