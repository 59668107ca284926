"""A Flax module class as a model of the registry: a function of the number of classes."""

import functools
import inspect
from collections.abc import Callable

from fedjax_lab.errors import BadInput

OF_FLAX = ("parent", "name", "rngs")  # arguments of every module


@functools.cache
def of_class(module_class: type) -> Callable:
    """The function (num_classes, *, settings) that makes modules of a class.

    The number of classes goes to the argument `num_classes`, or else to the first one without a
    default. All other arguments with a default are settings. BadInput where another one has none.
    """
    name = module_class.__qualname__
    parameters = inspect.signature(module_class).parameters
    arguments = {k: p for k, p in parameters.items() if k not in OF_FLAX and _is_named(p)}
    needed = [key for key, p in arguments.items() if p.default is p.empty]
    target = "num_classes" if "num_classes" in arguments else next(iter(needed), None)
    if target is None:
        raise BadInput(f"the model class {name} needs a field num_classes: int")
    if lacking := [key for key in needed if key != target]:
        raise BadInput(f"the model class {name}: its field {lacking[0]} needs a default")

    def model(num_classes, **settings):
        return module_class(**{target: num_classes}, **settings)

    settings = [p.replace(kind=p.KEYWORD_ONLY) for key, p in arguments.items() if key != target]
    first = inspect.Parameter("num_classes", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    model.__signature__ = inspect.Signature([first, *settings])  # type: ignore[attr-defined]
    model.__name__, model.__doc__ = name, module_class.__doc__
    model.__module__ = module_class.__module__
    return model


def _is_named(parameter):
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
