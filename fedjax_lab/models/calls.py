"""Observes and changes calls of a model's layers, in Flax's linen and NNX APIs."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn


class Layer(NamedTuple):
    """The module and the method of a call."""

    path: str  # in the model, such as "Block_0/Dense_1"; "" is the model itself
    module: Any
    method: str  # "__call__", or another method of the module


Hook = Callable[[Layer, Callable, tuple, dict], Any]  # (layer, call, args, kwargs) -> result

_HOOKS: ContextVar[tuple[Hook, ...]] = ContextVar("_HOOKS", default=())
_NAMES: ContextVar[Mapping[str, str]] = ContextVar("_NAMES", default=MappingProxyType({}))


@contextlib.contextmanager
def intercepted(hook: Hook) -> Iterator[None]:
    """Inside the context, every call of a layer goes through `hook`, which executes `call`.

    NNX modules take part if they have been prepared by `tapped`.
    """

    def intercept(call, args, kwargs, context):
        layer = Layer(named(context.module.path), context.module, context.method_name)
        return hook(layer, call, args, kwargs)

    token = _HOOKS.set((*_HOOKS.get(), hook))
    try:
        with nn.intercept_methods(intercept):
            yield
    finally:
        _HOOKS.reset(token)


@contextlib.contextmanager
def renamed(names: dict[str, str]) -> Iterator[None]:
    """Inside the context, hooks see these layers under other paths, {path: new path}."""
    token = _NAMES.set(names)
    try:
        yield
    finally:
        _NAMES.reset(token)


@contextlib.contextmanager
def field(module: Any, name: str, value: Any) -> Iterator[None]:
    """Inside the context, a field of the module has another value."""
    before = getattr(module, name)
    object.__setattr__(module, name, value)  # modules are frozen
    try:
        yield
    finally:
        object.__setattr__(module, name, before)


def named(path: Sequence[Any]) -> str:
    """The path of a layer as hooks see it."""
    joined = "/".join(map(str, path))
    return _NAMES.get().get(joined, joined)


def tapped(net: Any) -> Any:
    """Changes the NNX module `net` so that its calls and those of its submodules are intercepted.

    Calls of `net` itself drop named arguments that its class does not accept. Returns `net`.
    """
    from flax import nnx

    for path, module in list(nnx.iter_modules(net)):
        if callable(module):
            cls = _tapped(type(module), path)
            object.__setattr__(module, "__class__", cls)
    return net


@cache
def _tapped(cls, path):
    """A subclass of `cls`, because NNX rebuilds modules from their class and their arrays."""

    def __call__(self, *args, **kwargs):
        call = partial(cls.__call__, self)
        if not path:
            kwargs = taken(cls.__call__, kwargs)
        layer = Layer(named(path), self, "__call__")
        for hook in _HOOKS.get():
            call = partial(_through, hook, layer, call)
        return call(*args, **kwargs)

    members = {"__call__": __call__, "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls)(cls.__name__, (cls,), members)


def _through(hook, layer, call, *args, **kwargs):
    return hook(layer, call, args, kwargs)


def taken(function: Callable, arguments: dict[str, Any]) -> dict[str, Any]:
    """The named arguments that the function accepts."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


def with_nnx(types: tuple[type, ...], *names: str) -> tuple[type, ...]:
    """The types, plus the types of these names in `flax.nnx` if that has been imported."""
    nnx = sys.modules.get("flax.nnx")
    return types if nnx is None else (*types, *(getattr(nnx, name) for name in names))
