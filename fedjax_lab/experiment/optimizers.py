"""The clients' optimizer."""

import inspect
from collections.abc import Mapping

import jax
import optax

from fedjax_lab import optim
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.experiment.registry import NAMED, look_up, with_named_errors
from fedjax_lab.simulation import contract
from fedjax_lab.types import Task


def make_optimizer(local: Mapping) -> optax.GradientTransformation:
    """Makes the clients' optimizer from a config's section `local`.

    The optimizer's function gets the learning rate and, by name, those keys of the section that it
    has as parameters.
    """
    function = with_named_errors(
        "optimizer", local["optimizer"], look_up("optimizer", local["optimizer"])
    )
    _, *settings = inspect.signature(function).parameters
    made = function(local["lr"], **{key: local[key] for key in settings if key in local})
    if not (hasattr(made, "init") and hasattr(made, "update")):
        name = local["optimizer"]
        raise BadInput(f"optimizer {name} must return a GradientTransformation, not {quoted(made)}")
    factor = local.get("head_factor", 1.0)
    is_one = isinstance(factor, (int, float)) and factor == 1  # not a traced number
    return made if is_one else optim.scaled(made, "head", factor)


def check_optimizer(local: Mapping, task: Task) -> None:
    """Raises BadInput unless a user's optimizer changes the weights of this task, in their shapes.

    Also if the last layer has a rate of its own, but is frozen. Nothing is computed.
    """
    if local.get("head_factor", 1.0) != 1:
        try:
            _ = task.head
        except BadInput:
            raise BadInput(
                "config.local.head_factor is for the last layer, which is frozen; add head to"
                " config.adapter.layers"
            ) from None
    name = local["optimizer"]
    if name in NAMED["optimizer"]:
        return
    optimizer = make_optimizer(local)

    def step(params):
        state = optimizer.init(params)
        given = optimizer.update(params, state, params)
        if not isinstance(given, tuple) or len(given) != 2:
            raise BadInput(f"its `update` must return (updates, state), not {quoted(given)}")
        contract.check_alike("its `update` must return updates", given[0], params, "of the weights")
        contract.check_alike("its `update` must return the state", given[1], state)
        return given

    params = jax.eval_shape(task.init, jax.random.key(0)).params
    try:
        jax.eval_shape(with_named_errors("optimizer", name, step), params)
    except BadInput as error:
        raise BadInput(f"config.local.optimizer={name}: {error}") from error
