"""Experiments whose seeds differ in settings, which the compiled functions take as arguments."""

from collections.abc import Sequence

from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.config import value_at
from fedjax_lab.experiment.experiment import Experiment
from fedjax_lab.experiment.variants import FIRST_WEIGHTS
from fedjax_lab.types import State, Weights


def join(parts: Sequence[Experiment]) -> Experiment:
    """Combines runs whose configs differ only in numbers of `method` and `local`.

    The result is one computation. Its seeds are those of the first run, then those of the second,
    and so on. The numbers in which the runs differ are its `settings`, which are traced.
    Raises BadInput if these runs cannot be combined.
    """
    first = parts[0]
    _check_joinable(first)
    differing = [
        f"{section}.{key}"
        for section in ("method", "local")
        for key, value in first.config[section].items()
        if any(part.config[section][key] != value for part in parts)
    ]
    if first.config.local.per_client and "local.lr" in differing:
        raise BadInput("some clients have their own learning rates (config.local.per_client)")
    together = first.simulation._replace(
        seeds=[
            seed._replace(settings={key: value_at(part.config, key) for key in differing})
            for part in parts
            for seed in part.simulation.seeds
        ],
        vectorized_seeds=True,
    )
    return first._replace(simulation=together)


def with_first_weights(experiment: Experiment, weights: Sequence[Weights]) -> Experiment:
    """The experiment with given initial weights of each seed; None in them is drawn anew."""
    return _changed(experiment, [{"settings": {FIRST_WEIGHTS: given}} for given in weights])


def with_start(experiment: Experiment, states: Sequence[State]) -> Experiment:
    """The experiment with the initial states of each seed."""
    return _changed(experiment, [{"start": state} for state in states])


def _changed(experiment, fields):
    """The experiment with other fields of its seeds."""
    each = zip(experiment.simulation.seeds, fields, strict=True)
    seeds = [seed._replace(**changed) for seed, changed in each]
    return experiment._replace(simulation=experiment.simulation._replace(seeds=seeds))


def _check_joinable(first):
    """Raises BadInput unless runs like this one can be combined in one computation."""
    simulation = first.simulation
    if first.config.run.start_from:
        raise BadInput("the runs start from other runs (config.run.start_from)")
    if len(simulation.stages) > 1 or simulation.stages[0].start is not None:
        raise BadInput(f"method {first.config.method.name} has stages")
    if simulation.host is not None:
        raise BadInput("private state or examples are on the host (config.engine.state, data)")
    if not (simulation.vectorized_seeds or len(simulation.seeds) == 1):
        raise BadInput("the seeds of each run are not vectorized (config.engine.seeds)")
