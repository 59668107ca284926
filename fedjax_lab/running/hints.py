"""Hints at the end of a run: what a result may mean that a newcomer cannot know."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedjax_lab.experiment.experiment import Experiment
from fedjax_lab.experiment.federation import class_counts
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.simulation.units import metric_of
from fedjax_lab.types import State, Weights

GOOD = 80.0  # accuracy in percent from which normalization needs no hint


class Facts(NamedTuple):
    """The facts about a run on which its hints depend."""

    accuracy: float  # headline accuracy in percent after the last round; NaN if there is none
    classes: int  # 0 if an example does not have one class
    unlike_domains: bool  # most clients lack a domain that another one has
    shared_norm: bool  # the server averages running statistics of normalization layers
    one_class: bool = False  # all pixels are predicted to be of one class


def lines(facts: Facts) -> list[str]:
    """The hints that fit the facts, each a line."""
    hints = []
    if facts.accuracy <= _just_above_chance(facts.classes):
        hints.append(
            f"{facts.accuracy:.1f} % is chance level for {facts.classes} classes: the models have"
            " learned nothing yet; try more rounds or another config.local.lr"
        )
    if facts.one_class:
        hints.append(
            f"an accuracy of {facts.accuracy:.1f} % with this mIoU is one class for every pixel:"
            " the models have learned nothing yet; try more rounds or local.optimizer=adam"
        )
    if facts.unlike_domains and facts.shared_norm and facts.accuracy < GOOD:
        hints.append(
            "the clients' domains differ, and the server averages the statistics of the model's"
            " BatchNorm layers, which then fit no domain: compare a method that keeps these layers"
            " on the client, or a model without them (docs/faq.md)"
        )
    return hints


def clipped(rows: Sequence[dict]) -> str:
    """A line if numbers of updates were clipped for the secure sums of these rows; "" otherwise."""
    share = max(row.get("recorded", {}).get("clipped_share", 0.0) for row in rows)
    if not share:
        return ""
    return (
        f"secure_sum clips up to {100 * share:.2g} % of the numbers of a round's updates, so that"
        " their mean is wrong; increase config.aggregator.limit"
    )


def _just_above_chance(classes):
    """The accuracy in percent up to which a model is not better than guessing; NaN: unknown."""
    if classes < 2:
        return math.nan
    chance = 100 / classes
    return chance + min(0.5 * chance, 0.03 * (100 - chance))


def is_one_class(accuracy: float, miou: float, classes: int) -> bool:
    """Whether pixels of `classes` classes are predicted to be of one class, from percentages.

    The intersection over union of this class is then the accuracy, and that of the others is 0.
    """
    return miou <= 1.01 * accuracy / classes


def run_hints(experiment: Experiment, state: State, summary: dict) -> dict[str, list[str]]:
    """The entry of summary.json with the hints, if there are any.

    state: of one seed, of which only the structure matters.
    """
    measured, dataset = summary["last"]["mean"], experiment.dataset
    measure = metric_rows.headline_measure(measured)
    is_accuracy = measure is not None and metric_of(measure) == "accuracy"
    value = metric_rows.value_of(measured, measure) if is_accuracy and measure else None
    miou = measured.get("miou", {}).get("mean")
    facts = Facts(
        accuracy=math.nan if value is None else value,
        classes=len(dataset.classes) if experiment.config.task.name == "classification" else 0,
        unlike_domains=_unlike_domains(experiment),
        shared_norm=_has_statistics(state.server),
        one_class=value is not None
        and miou is not None
        and is_one_class(value, miou, len(dataset.classes)),
    )
    hints = lines(facts)
    return {"hints": hints} if hints else {}


def _unlike_domains(experiment):
    simulation, dataset = experiment.simulation, experiment.dataset
    if len(dataset.domains) < 2:
        return False
    rows = simulation.seeds[0].training.train
    return are_unlike(class_counts(rows, np.asarray(dataset.domain), len(dataset.domains)))


def are_unlike(held: np.ndarray) -> bool:
    """Whether most clients lack a domain that another one has.

    held: the number of examples of each client by domain; one without examples does not count.
    """
    held = held[held.any(1)]
    lacking = (held[:, held.any(0)] == 0).any(1)
    return 2 * int(lacking.sum()) > len(held)


def _has_statistics(server):
    parts = jax.tree.leaves(server, is_leaf=lambda part: isinstance(part, Weights))
    return any(isinstance(part, Weights) and jax.tree.leaves(part.stats) for part in parts)
