"""Runs whose method trains on the examples of all clients pooled: `Extra.pooled`.

They train one client that holds all examples, and score each client as other runs do.
"""

from collections.abc import Sequence

import ml_collections

from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.experiment.config import value_at
from fedjax_lab.experiment.keys import KEYS
from fedjax_lab.simulation import needs
from fedjax_lab.types import Stage

WITHOUT_EFFECT = (  # keys that say which clients take part, and when
    "clock.name",
    "clock.availability",
    "clock.over_selection",
    "clock.deadline",
    "clock.late",
    "clock.max_staleness",
    "clock.start_rate",
    "run.dropout",
    "run.sampling",
    "run.straggler",
)


def are_pooled(stages: Sequence[Stage]) -> bool:
    """Whether the stages train on pooled examples. Raises BadInput if only some of them do."""
    pooled = {stage.method.extra.pooled for stage in stages}
    if len(pooled) > 1:
        named = " + ".join(f"{stage.rounds} of {stage.name}" for stage in stages)
        raise BadInput(f"the stages {named} do not train on the same clients")
    return pooled.pop()


def without_clients(
    config: ml_collections.ConfigDict, stages: Sequence[Stage]
) -> ml_collections.ConfigDict:
    """The config with the defaults of the keys that have no effect without clients.

    Raises BadInput if the clients have unlike models; `simulation.needs` has what else they need.
    """
    if config.model.kinds:
        kinds, method = quoted(config.model.kinds), config.method.name
        what = f"config.model.kinds={kinds} does not fit method {method}: "
        needs.check(stages, "clients", what=what)
    changed = config.copy_and_resolve_references()
    changed.update_from_flattened_dict({key: KEYS[key].default for key in WITHOUT_EFFECT})
    return changed


def remarks(config: ml_collections.ConfigDict, stages: Sequence[Stage]) -> tuple[str, ...]:
    """A line on the keys of the config that have no effect without clients."""
    given = [key for key in WITHOUT_EFFECT if value_at(config, key) != KEYS[key].default]
    if not given or not are_pooled(stages):
        return ()
    named = ", ".join(f"config.{key}={value_at(config, key)}" for key in given)
    return (f"method {config.method.name} trains without clients: {named} has no effect",)
