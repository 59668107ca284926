"""A Flax module class as a model of the registry: a function of the number of classes."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn

from fedjax_lab.errors import BadInput
from fedjax_lab.models import calls

OF_FLAX = ("parent", "name", "rngs")  # arguments of every module
SETTINGS = (bool, int, float, str, tuple)  # types of the defaults of what a config can set


@functools.cache
def of_class(part: Callable) -> Callable[..., nn.Module]:
    """The function (num_classes, *, settings) that makes linen modules of a class.

    The number of classes goes to the argument `num_classes`, or else to the first one without a
    default. The other arguments whose default a config can hold are settings. An NNX class, or a
    function with an argument `rngs`, makes an NNX module inside a linen one. Any other function is
    returned as it is. BadInput where a class is not Flax's or another argument has no default.
    """
    arguments = _arguments(part)
    if not isinstance(part, type) and "rngs" not in arguments:
        return part
    name = part.__qualname__
    _check_class(part)
    chosen = {k: p for k, p in arguments.items() if k not in OF_FLAX and _is_named(p)}
    needed = [key for key, p in chosen.items() if p.default is p.empty]
    target = "num_classes" if "num_classes" in chosen else next(iter(needed), None)
    if target is None:
        raise BadInput(f"the model class {name} needs a field num_classes: int")
    if lacking := [key for key in needed if key != target]:
        raise BadInput(f"the model class {name}: its field {lacking[0]} needs a default")
    make: Any = part if _is_linen(part) else functools.partial(_bridged, part, "rngs" in arguments)

    def model(num_classes, **settings):
        return make(**{target: num_classes}, **settings)

    settings = [
        p.replace(kind=p.KEYWORD_ONLY)
        for key, p in chosen.items()
        if key != target and isinstance(p.default, SETTINGS)
    ]
    first = inspect.Parameter("num_classes", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    model.__signature__ = inspect.Signature([first, *settings])  # type: ignore[attr-defined]
    model.__name__ = model.__qualname__ = name
    model.__module__, model.__doc__ = part.__module__, part.__doc__
    return model


def _arguments(part):
    """Those of a call, by name. NNX's metaclass hides those of a class."""
    if not isinstance(part, type):
        return inspect.signature(part).parameters
    _, *arguments = inspect.signature(part.__init__).parameters.values()
    return {argument.name: argument for argument in arguments}


def _check_class(part):
    if isinstance(part, type) and not issubclass(part, calls.with_nnx((nn.Module,), "Module")):
        raise BadInput(
            f"model {part.__name__} is no Flax module; name a subclass of flax.linen.Module or of"
            " flax.nnx.Module, or a function (num_classes, *, settings) that returns one"
        )


def _is_linen(part):
    return isinstance(part, type) and issubclass(part, nn.Module)


def _is_named(parameter):
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _bridged(part, takes_rngs, **settings):
    from flax.nnx import bridge

    return bridge.to_linen(part, skip_rng=not takes_rngs, **settings)
