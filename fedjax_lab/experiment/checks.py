"""Checks that the method and the federation of a run fit its config."""

from collections.abc import Sequence

import jax.numpy as jnp
import ml_collections
import numpy as np

from fedjax_lab.data.dataset import Dataset, are_numerals
from fedjax_lab.data.partitions import dealing
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.experiment.federation import check_scored
from fedjax_lab.simulation import needs
from fedjax_lab.simulation.evaluate import uses_data_of_new
from fedjax_lab.types import Federation, Objective, Plan, Stage


def check_clients(config: ml_collections.ConfigDict, federation: Federation) -> None:
    """Raises BadInput if no example is scored or a round has more clients than can be trained."""
    check_scored(federation)
    num_clients = len(federation.train)
    if config.run.cohort > num_clients:
        raise BadInput(
            f"config.run.cohort={config.run.cohort} is more than the {num_clients} clients that"
            f" partition {config.partition.name} makes for training"
        )


def check_partition(config: ml_collections.ConfigDict, dataset: Dataset) -> None:
    """Raises BadInput if examples are to be divided by their classes, but have none."""
    if dataset.has_classes:
        return
    for key, of_classes in (("partition.name", dealing.BY_CLASS), ("data.shots_per", ("class",))):
        section, name = key.split(".")
        if config[section][name] in of_classes:
            raise BadInput(
                f"config.{key}={config[section][name]} needs one class per example, and these have"
                " none; divide them with config.partition.name=iid, quantity, by_client or"
                " by_domain, and config.data.shots_per=client"
            )


def check_target(config: ml_collections.ConfigDict, objective: Objective) -> None:
    """Raises BadInput if the accuracy can never reach the target."""
    if objective.correct is not None and config.run.target > 100:
        raise BadInput(f"config.run.target is a percentage, not {config.run.target}")


def are_numbers(objective: Objective) -> bool:
    """Whether labels are numbers, whose values are not classes even if all of them are whole."""
    return bool(jnp.issubdtype(objective.label.dtype, jnp.floating))


def check_numbers(
    config: ml_collections.ConfigDict, dataset: Dataset, objective: Objective
) -> None:
    """Raises BadInput if the model would learn the numbers of classes that have names."""
    y, classes = np.asarray(dataset.y), dataset.classes
    if not are_numbers(objective) or not dataset.has_classes or are_numerals(classes):
        return
    names = [classes[number] for number in y]
    row = next((row for row, name in enumerate(names) if not _is_number(name)), 0)
    raise BadInput(
        f"config.task.name={config.task.name} needs numbers, but the labels are names of"
        f" {len(classes)} classes: that of example {row + 1} is {quoted(names[row])}; make them"
        " numbers, or set --config.task.name=classification, or binary for two classes"
    )


def _is_number(text):
    try:
        return np.isfinite(float(text))
    except ValueError:
        return False


def check_moved(config: ml_collections.ConfigDict, objective: Objective) -> None:
    """Raises BadInput if images would be moved or turned, but not the labels of their pixels."""
    if len(objective.label.shape) < 2:
        return
    for section, key, still in (
        ("data", "augment", ("none",)),
        ("partition", "feature_skew", ("none", "noise")),
    ):
        name = config[section][key]
        if name not in still and ":" not in name:
            raise BadInput(
                f"config.{section}.{key}={name} moves the pixels of an image, but not their labels;"
                f" with config.task.name={objective.name} use {' or '.join(still)}"
            )


SKEW_NEEDS = ("clients", "examples")


def check_skewed(config: ml_collections.ConfigDict, stages: Sequence[Stage]) -> None:
    """Raises BadInput if the feature skew would not affect the method's examples."""
    name, method = config.partition.feature_skew, config.method.name
    if name == "none":
        return
    what = f"config.partition.feature_skew={name} does not fit method {method}: "
    needs.check(stages, *SKEW_NEEDS, what=what)


def check_validation(
    config: ml_collections.ConfigDict, stages: Sequence[Stage], federation: Federation
) -> None:
    """Raises BadInput if a method needs validation rows that clients or new clients do not have."""
    name, methods = config.method.name, [stage.method for stage in stages]
    if not any(method.validation for method in methods):
        return
    tuned = any(method.validation and uses_data_of_new(method) for method in methods)
    of_new = ("no_new_clients",) if tuned else ()
    needs.check(federation, *needs.VALIDATION, *of_new, what=f"method {name}: ")


def check_accumulated(config: ml_collections.ConfigDict, plan: Plan) -> None:
    """Raises BadInput unless a batch can be divided into config.local.accumulate equal parts."""
    if plan.batch_size % plan.accumulate:
        raise BadInput(
            f"config.local.accumulate={plan.accumulate} does not divide a batch of"
            f" {plan.batch_size} examples (config.local.batch_size, or all examples of the largest"
            " client)"
        )
