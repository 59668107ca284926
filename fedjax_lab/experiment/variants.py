"""A run with other settings: for runs that are trained together, and for schedules.

A variant of a run has the stages and the optimizer that its config describes, with some of the
config's numbers replaced. These numbers may be traced. Runs that are trained together differ in
such settings, and a schedule is a setting whose value depends on the round.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import ml_collections
import numpy as np

from fedjax_lab import tree
from fedjax_lab.engine.input import BASE, Settings, unscheduled
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import clocks, schedules, transforming
from fedjax_lab.experiment.config import value_at
from fedjax_lab.experiment.optimizers import make_optimizer
from fedjax_lab.experiment.registry import METHODS, bind, keyword_defaults, look_up, make_method
from fedjax_lab.experiment.stages import lay_out
from fedjax_lab.models.frozen import Model
from fedjax_lab.transforms import kinds
from fedjax_lab.transforms.guarantee import Setup
from fedjax_lab.types import Array, PyTree, Stage

FIRST_WEIGHTS = "first weights"  # key of the initial weights among the settings of a seed
SCHEDULED = {  # learning rate: (key of its schedule, key of its warm-up rounds)
    "local.lr": ("local.schedule", "local.warmup"),
    "method.server_lr": ("run.server_schedule", "run.server_warmup"),
}


def variant(
    config: ml_collections.ConfigDict,
    model: Model,
    setup: Setup | None,
    settings: dict[str, PyTree],
) -> tuple[tuple[Stage, ...], dict[str, Any]]:
    """The stages of a run, and the fields of the plan that define a client's step.

    Args:
      config: the config of the run.
      model: its model.
      setup: see `transforming.as_configured`.
      settings: numbers by dotted key that replace those of the config and may be traced, and
        initial weights under `FIRST_WEIGHTS`, and frozen weights under `BASE`.

    Raises:
      BadInput: the method or a transform does not fit the run.
    """
    task = model.bind(settings.get(BASE, model.base))
    if (weights := settings.get(FIRST_WEIGHTS)) is not None:
        new = task.init
        task = task._replace(init=lambda key: tree.join(weights, new(key)))
        if task.adapters is not None:
            task = task._replace(adapters=task.adapters._replace(given=True))
    method, local = (_section(config, name, settings) for name in ("method", "local"))
    made = kinds.mixed_method(lambda task: make_method(task=task, **method), task)
    stages = lay_out(made, config.run.rounds)
    transforming.check_private(config, stages)
    clocks.check_method(config, stages)
    stages = tuple(transforming.as_configured(stage, task, config, setup) for stage in stages)

    def optimizer_of(rate):
        return make_optimizer({**local, "lr": local["lr"] * rate})

    of_step = {"optimizer": make_optimizer(local), "optimizer_of": optimizer_of}
    return stages, of_step | {"clip": local["clip"]}


def _section(config, name, settings):
    """A section of the config, with these settings replaced."""
    return {key: settings.get(f"{name}.{key}", value) for key, value in config[name].items()}


# Learning rates that change from round to round.


def scheduled(
    config: ml_collections.ConfigDict, lengths: Sequence[int]
) -> Callable[[int, Settings, Array], Settings]:
    """The function (number of a stage, settings, t) -> settings of a `variant` in round t.

    It sets the learning rates that follow a schedule. lengths: how many
    rounds each stage has. Raises BadInput, as `learning_rates` does.
    """
    if not learning_rates(config, lengths):
        return unscheduled

    def in_round(number, settings, t):
        changed, t = dict(settings), jnp.maximum(t - sum(lengths[:number]), 0)
        for rate in _rates(config):
            factor = _make_schedule(config, rate, lengths[number], settings)(t)
            changed[rate] = settings.get(rate, value_at(config, rate)) * jnp.float32(factor)
        return changed

    return in_round


def learning_rates(
    config: ml_collections.ConfigDict, lengths: Sequence[int]
) -> dict[str, np.ndarray]:
    """The learning rates that change from round to round: {dotted key: value in each round}.

    lengths: how many rounds each stage has. A schedule restarts in each stage.

    Raises BadInput if a schedule or one of its settings cannot be used.
    """
    rates = {}
    for rate in _rates(config):
        key = SCHEDULED[rate][0]
        _check_has(config, rate, key)
        _check_warmup(config, SCHEDULED[rate][1], max(lengths))
        try:
            factors = [schedules.curve(_make_schedule(config, rate, n, {}), n) for n in lengths]
        except BadInput as error:
            raise BadInput(f"config.{key}={value_at(config, key)}: {error}") from error
        rates[rate] = np.float32(value_at(config, rate)) * np.concatenate(factors)
    return rates


def check_rates(
    config: ml_collections.ConfigDict, old: Sequence[int], new: Sequence[int], played: int
) -> None:
    """Raises BadInput if other stage lengths change the learning rates of rounds already played.

    old, new: the earlier and the new number of rounds of each stage. played: rounds played so far.
    """
    before, after = (learning_rates(config, lengths) for lengths in (old, new))
    for rate, rates in before.items():
        if not np.array_equal(rates[:played], after[rate][:played]):
            key = SCHEDULED[rate][0]
            raise BadInput(
                f"config.{key}={value_at(config, key)} depends on config.run.rounds: another number"
                f" of rounds would have changed {rate} in the first {played} rounds; name another"
                " folder"
            )


def _rates(config):
    """The learning rates that follow a schedule or have a warm-up."""
    return [
        rate
        for rate, (schedule, warmup) in SCHEDULED.items()
        if value_at(config, schedule) != "constant" or value_at(config, warmup) > 0
    ]


def _check_has(config, rate, key):
    """Raises BadInput unless the method has the learning rate that the schedule changes."""
    section, _, name = rate.partition(".")
    if name in config[section]:
        return
    having = [m for m in METHODS if name in keyword_defaults(look_up("method", m))]
    raise BadInput(
        f"config.{key} and its warm-up need a method with the setting {name}, which method"
        f" {config.method.name} does not have; methods that have it: {', '.join(having)}"
    )


def _check_warmup(config, key, rounds):
    if value_at(config, key) >= rounds:
        raise BadInput(
            f"config.{key}={value_at(config, key)} must be less than the {rounds} rounds"
        )


def _make_schedule(config, rate, rounds, settings):
    """The schedule of a learning rate. settings: as in `variant`."""
    key, warmup = SCHEDULED[rate]
    section, _, name = key.partition(".")
    make = bind("schedule", _section(config, section, settings), name)
    return schedules.after_warmup(make, value_at(config, warmup), rounds)
