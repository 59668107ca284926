"""Clients with unlike models: config.model.name, config.model.kinds and config.model.shares."""

from collections.abc import Mapping

import ml_collections

from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.experiment.registry import keyword_defaults, look_up

OF_ONE_MODEL = {  # keys that concern the one model of a run: the values with which they do not
    "model.pretrained": "",
    "adapter.name": "none",
    "engine.fsdp": 1,
    "run.start_from": "",
}


def names(model: Mapping) -> tuple[str, ...]:
    """The names of the nets of all kinds of clients; of a reference only the function's."""
    return tuple(name.rpartition(":")[2] for name in (model["name"], *model["kinds"]))


def shares(model: Mapping) -> tuple[float, ...]:
    """The shares of the kinds; () if all clients have one model."""
    number = len(model["kinds"]) + 1
    return () if number == 1 else model["shares"] or (1 / number,) * number


def sections(model: Mapping) -> list[Mapping]:
    """The section of each kind: that of the config, and those of other nets with their defaults."""
    others = [{"name": name, **keyword_defaults(look_up("model", name))} for name in model["kinds"]]
    return [model, *others]


def check(config: ml_collections.ConfigDict) -> None:
    """Raises BadInput if a key of the config is for runs with one model."""
    for key, value in OF_ONE_MODEL.items():
        section, _, name = key.partition(".")
        if config.model.kinds and config[section][name] != value:
            raise BadInput(
                f"config.{key}={quoted(config[section][name])} is for one model, and cannot be"
                " combined with config.model.kinds"
            )
