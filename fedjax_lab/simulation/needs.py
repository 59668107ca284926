"""What the parts of a run need of each other, with the reason why a part does not have it.

A part names its needs by keys of `NEEDS` and calls `check`; no other code compares parts. (That a
formula needs one class per example follows from its use of `Task.num_classes`.)
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedjax_lab import sampling
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Federation, Method, Stage, Stages, Task


class Need(NamedTuple):
    """A property of a part, without which another part cannot be combined with it."""

    holds: Callable[[Any], bool]  # of the stages of a method, of a federation, or of a task
    reason: str  # why a part without it does not fit; the part is "it"


def _each(holds: Callable[[Method], bool]) -> Callable[[Sequence[Stage]], bool]:
    """Whether the methods of all stages have a property."""
    return lambda stages: all(holds(stage.method) for stage in stages)


METHODS = {
    "one_stage": Need(lambda stages: len(stages) == 1, "it has several stages"),
    "plain": Need(
        lambda stages: len(stages) == 1 and stages[0].is_plain,
        "it has stages, between which it also uses data of its clients",
    ),
    "examples": Need(
        lambda stages: not any(stage.embeddings for stage in stages),
        "it trains on embeddings of the examples (config.embedding)",
    ),
    "clients": Need(
        _each(lambda method: not method.extra.pooled),
        "it trains on the examples of all clients at once and has no uploads",
    ),
    "all_at_once": Need(
        _each(lambda method: not (method.extra.pooled or method.extra.one_by_one)),
        "its server never sees the updates of several clients at once",
    ),
    "no_turns": Need(
        _each(lambda method: not method.extra.one_by_one),
        "its clients take turns",
    ),
    "common_update": Need(
        _each(lambda method: all(exchange.alike for exchange in method.round)),
        "its clients update models of their own, so that no single update can stand for all",
    ),
    "single_updates": Need(
        _each(lambda method: not method.extra.private_sum),
        "its server only learns a noisy sum of the updates (config.privacy);"
        " config.privacy.name=local protects each update, so that other transforms can follow",
    ),
    "first_state": Need(
        _each(lambda method: method.init is not None),
        "it starts from the state of an earlier stage, which is not supported here",
    ),
    "first_model": Need(
        _each(lambda method: None not in (method.init, method.predict)),
        "its stages have no models to score from the first round on",
    ),
    "global_model": Need(
        _each(lambda method: method.newcomer is not None), "it has no global model"
    ),
    "one_exchange": Need(
        _each(lambda method: len(method.round) == 1),
        "it has several exchanges in a round",
    ),
    "any_clients": Need(
        _each(lambda method: method.sample in (sampling.by_size, sampling.equal)),
        "it draws its clients itself",
    ),
}
OTHERS = {
    "validation": Need(
        lambda federation: federation.validation is not None,
        "it needs validation examples of its clients, and there are none; hold some out, for"
        " example with --config.partition.validation=0.2",
    ),
    "validation_of_trained": Need(
        lambda federation: len(federation.validation) == len(federation.train),
        "it needs validation examples of the clients that train, but it trains on the examples of"
        " all clients pooled",
    ),
    "no_new_clients": Need(
        lambda federation: federation.new_train is None,
        "it needs validation examples also of new clients, which have none; use"
        " config.partition.new_clients=0",
    ),
    "adapters": Need(
        lambda task: task.adapters is not None,
        "it trains low-rank adapters, and the model has none; set --config.adapter.name=lora, or"
        " choose another method",
    ),
    "batch_norms": Need(
        lambda task: bool(task.batch_norms),
        "it needs a model with BatchNorm, and this one has none; choose another config.model.name,"
        " such as fedbn_cnn",
    ),
}
NEEDS = METHODS | OTHERS
VALIDATION = ("validation", "validation_of_trained")  # what `Method.validation` needs


class Unmet(BadInput):
    """A part does not have what another part needs."""

    def __init__(self, need: str, message: str):
        super().__init__(message)
        self.need = need  # a key of `NEEDS`


def check(
    part: Method | Stages | Sequence[Stage] | Federation | Task,
    *needs: str,
    what: str = "",
    remedy: str = "",
) -> None:
    """Raises Unmet unless the part meets these keys of NEEDS.

    what, remedy: the beginning and the end of the message.
    """
    seen: Any = part
    if isinstance(part, Method):
        seen = (Stage("train", part, 1),)
    elif callable(part):  # the stages follow from the number of rounds
        seen = ()
    for need in needs:
        if not NEEDS[need].holds(seen):
            raise Unmet(need, f"{what}{NEEDS[need].reason}{remedy}")
