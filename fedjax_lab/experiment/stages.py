"""The stages of a run."""

import itertools
from collections.abc import Sequence

from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.pooled import are_pooled
from fedjax_lab.simulation import contract
from fedjax_lab.types import Method, Stage, Stages


def lay_out(method: Method | Stages, rounds: int) -> tuple[Stage, ...]:
    """The stages of a run of so many rounds; a method without stages is a single one.

    Stages without rounds at the end are left out. Raises BadInput if any other stage has no rounds.
    """
    stages = (Stage("train", method, rounds),) if isinstance(method, Method) else method(rounds)
    contract.check_stages(stages)
    while stages and stages[-1].rounds == 0:
        stages = stages[:-1]
    named = " + ".join(f"{stage.rounds} of {stage.name}" for stage in stages)
    if not stages or min(stage.rounds for stage in stages) < 1:
        raise BadInput(
            f"config.run.rounds={rounds} does not fit the stages: {named}; every stage needs at"
            " least one round"
        )
    are_pooled(stages)
    return stages


def ends(stages: Sequence[Stage]) -> dict[str, int]:
    """{name of a stage: the number of rounds after which it ends}."""
    names, rounds = zip(*((stage.name, stage.rounds) for stage in stages), strict=True)
    return dict(zip(names, itertools.accumulate(rounds), strict=True))
