"""Seeing and changing the calls of a model's layers, those of Flax's linen and those of its NNX."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn


class Layer(NamedTuple):
    """The module that is called, and how."""

    path: str  # in the model, such as "Block_0/Dense_1"; "" is the model itself
    module: Any
    method: str  # "__call__", or another one of the module's


Hook = Callable[[Layer, Callable, tuple, dict], Any]  # (layer, call, args, kwargs) -> what it gives

_HOOKS: ContextVar[tuple[Hook, ...]] = ContextVar("_HOOKS", default=())
_NAMES: ContextVar[Mapping[str, str]] = ContextVar("_NAMES", default=MappingProxyType({}))


@contextlib.contextmanager
def intercepted(hook: Hook) -> Iterator[None]:
    """Every call of a layer inside the context goes through `hook`, which makes it by `call`.

    NNX modules take part where `tapped` has prepared them.
    """

    def of_linen(call, args, kwargs, context):
        layer = Layer(_named(context.module.path), context.module, context.method_name)
        return hook(layer, call, args, kwargs)

    token = _HOOKS.set((*_HOOKS.get(), hook))
    try:
        with nn.intercept_methods(of_linen):
            yield
    finally:
        _HOOKS.reset(token)


@contextlib.contextmanager
def renamed(names: dict[str, str]) -> Iterator[None]:
    """Hooks are told other paths of these layers for the calls inside the context."""
    token = _NAMES.set(names)
    try:
        yield
    finally:
        _NAMES.reset(token)


def _named(path):
    joined = "/".join(map(str, path))
    return _NAMES.get().get(joined, joined)


def tapped(net: Any) -> Any:
    """The NNX module `net`, changed so that its calls and those of its parts can be intercepted.

    A call of `net` itself leaves out the named arguments that its class does not take.
    """
    from flax import nnx

    for path, module in list(nnx.iter_modules(net)):
        if callable(module):
            cls = _tapped(type(module), path)
            object.__setattr__(module, "__class__", cls)
    return net


@cache
def _tapped(cls, path):
    """A subclass, because NNX makes modules anew from their class and their arrays."""

    def __call__(self, *args, **kwargs):
        call = partial(cls.__call__, self)
        if not path:
            kwargs = taken(cls.__call__, kwargs)
        layer = Layer(_named(path), self, "__call__")
        for hook in _HOOKS.get():
            call = partial(_through, hook, layer, call)
        return call(*args, **kwargs)

    members = {"__call__": __call__, "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls)(cls.__name__, (cls,), members)


def _through(hook, layer, call, *args, **kwargs):
    return hook(layer, call, args, kwargs)


def taken(function: Callable, arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of the named arguments that the function has."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


def with_nnx(types: tuple[type, ...], *names: str) -> tuple[type, ...]:
    """The types, and those of these names in `flax.nnx` if anything has imported that."""
    nnx = sys.modules.get("flax.nnx")
    return types if nnx is None else (*types, *(getattr(nnx, name) for name in names))
