"""Any Flax module as two pure functions: its initial variables, and a pass over a batch.

A linen module may be called as `module(x)`, or with further arguments that set the mode of the
pass: `train`, `training` or `is_training`, or the opposite, `deterministic` or
`use_running_average`. A field of such a name is set as well. The argument `mask` [B] is 1 for real
rows. Padded rows are excluded from the moments of each BatchNorm to which the module passes no
mask; if the examples are not the first axis of its input, it is refused.

An NNX module is wrapped by `nnx.bridge.ToLinen`; each pass creates one in the right mode.
"""

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import flax.linen as nn
import jax

from fedjax_lab.errors import BadInput, cut, place_of, reason_of
from fedjax_lab.models import calls, layers
from fedjax_lab.types import Array

MODES = {  # arguments and fields that set the mode of a pass, with their value in training
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}
OF_FLAX = ("parent", "name", "rngs")  # arguments of every module
SETTINGS = (bool, int, float, str, tuple)  # types of the defaults of what a config can set


# From a part that a config names to a module.


@cache
def as_function(part: Callable) -> Callable[..., nn.Module]:
    """The function (num_classes, *, settings) that makes linen modules of a class.

    The number of classes is passed to the argument `num_classes`, or else to the first one without
    a default. Other arguments whose default a config can hold are settings. An NNX class, or a
    function with an argument `rngs`, makes an NNX module inside a linen one. Any other function is
    returned unchanged. Raises BadInput if a class is not Flax's, or if another argument has no
    default.
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
    make: Any = part if _is_linen(part) else partial(_bridged, part, "rngs" in arguments)

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
    """The arguments of a call by name; NNX's metaclass hides those of a class from inspect."""
    if not isinstance(part, type):
        return inspect.signature(part).parameters
    _, *arguments = inspect.signature(part.__init__).parameters.values()
    return {argument.name: argument for argument in arguments}


def _check_class(part):
    if isinstance(part, type) and not issubclass(part, calls.with_nnx((nn.Module,), "Module")):
        raise BadInput(
            f"model {part.__name__} is not a Flax module; name a subclass of flax.linen.Module or"
            " flax.nnx.Module, or a function (num_classes, *, settings) that returns a module"
        )


def _is_linen(part):
    return isinstance(part, type) and issubclass(part, nn.Module)


def _is_named(parameter):
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _bridged(part, takes_rngs, **settings):
    from flax.nnx import bridge

    return bridge.to_linen(part, skip_rng=not takes_rngs, **settings)


def check_module(made: Any) -> None:
    """Raises BadInput unless the object that a model's function returned is a linen module."""
    if isinstance(made, nn.Module):
        return
    kind = type(made).__name__
    if isinstance(made, calls.with_nnx((), "Module")):
        raise BadInput(
            f"the model's function returns an NNX {kind} that already has weights; add an argument"
            " `rngs` to the function and make the module with it, so that each seed has its own"
            " initial weights"
        )
    raise BadInput(f"a model must be a Flax module, not {cut(kind, 80)}")


# The two functions.


def init(module: nn.Module, key: Array, x: Array) -> tuple[Any, dict]:
    """The outputs for a batch in evaluation mode, and the initial variables."""
    rngs: Any = key
    if _is_bridge(module):
        rngs = {"params": key, **_streams(jax.random.fold_in(key, 1))}
    with named_errors(module):
        ready, arguments = _in_mode(module, False, None)
        outputs, variables = ready.init_with_output(rngs, x, **arguments)
    return outputs, nn.meta.unbox(variables)


def apply(
    module: nn.Module, variables: dict, x: Array, key: Array | None, mask: Array | None
) -> tuple[Any, dict]:
    """The outputs for a batch, and the variables that the pass has changed.

    A key means training mode.
    """
    with named_errors(module):
        ready, arguments = _in_mode(module, key is not None, mask)
        if key is None:
            return ready.apply(variables, x, **arguments), {}
        with _masked(mask):
            return ready.apply(
                variables, x, **arguments, rngs=_streams(key), mutable=["batch_stats"]
            )


def _streams(key):
    """The streams of random numbers: dropout's, and one for streams of any other name."""
    other = jax.random.fold_in(key, 1)
    return {"dropout": key, "params": other, "default": other}


def _in_mode(module, train, mask):
    """The module, and its arguments besides x, for a pass in this mode."""
    modes = {name: train is in_training for name, in_training in MODES.items()}
    if _is_bridge(module):
        make = partial(_make_nnx, module.nnx_class, train)
        return module.clone(nnx_class=make, metadata_fn=None), {**modes, "mask": mask}
    arguments = calls.taken(type(module).__call__, {**modes, "mask": mask})
    fields = {field.name for field in dataclasses.fields(module)} - arguments.keys()
    fields = {name: value for name, value in modes.items() if name in fields}
    return module.clone(**fields) if fields else module, arguments


def _make_nnx(make, train, *args, **kwargs):
    """A new NNX module in this mode."""
    net = make(*args, **kwargs)
    net.train() if train else net.eval()
    return calls.tapped(net)


def _is_bridge(module):
    bridge: Any = sys.modules.get("flax.nnx.bridge")
    return bridge is not None and isinstance(module, bridge.ToLinen)


@contextlib.contextmanager
def _masked(mask):
    """Inside the context, BatchNorm's moments exclude padded rows, unless the module masks them."""

    def hook(layer, call, args, kwargs):
        if layer.method == "__call__" and isinstance(layer.module, batch_norms()):
            if len(args) > 2:  # x, mode, mask
                args, kwargs = args[:2], {**kwargs, "mask": args[2]}
            kwargs = {**kwargs, **_rows_of(layer, mask, *args, **kwargs)}
        return call(*args, **kwargs)

    if mask is None:
        yield
        return
    with calls.intercepted(hook):
        yield


def batch_norms() -> tuple[type, ...]:
    """The types of the layers that compute moments over the examples of a batch."""
    return calls.with_nnx((layers.BatchNorm, nn.BatchNorm), "BatchNorm")


def _rows_of(layer, rows, x, *mode, mask=None, **modes):
    """The argument `mask` for a call of a BatchNorm; {} if it needs none. rows: [B]."""
    is_batch_norm = isinstance(layer.module, layers.BatchNorm)
    if mask is not None or (not is_batch_norm and _is_frozen(layer.module, *mode, **modes)):
        return {}
    if len(x) != len(rows):
        raise BadInput(
            f"the layer {layer.path} of the model cannot leave out the padding of short batches,"
            " because the first axis of its input is not that of the examples; keep the examples as"
            " the first axis ([B, T, C] instead of [B * T, C] or [T, B, C]), or pass it a `mask`,"
            " made from the argument `mask` [B] of the model's call"
        )
    if is_batch_norm:
        return {"mask": rows}
    real = (rows > 0) | ~rows.any()  # avoids moments of an empty set
    return {"mask": real.reshape(-1, *(1,) * (x.ndim - 1))}


def _is_frozen(norm, use_running_average=None):
    """Whether this call of Flax's BatchNorm uses its running statistics."""
    if use_running_average is None:
        use_running_average = norm.use_running_average
    return use_running_average is True


# Errors of a module.


def name_of(module: nn.Module) -> str:
    """The name of the model in messages."""
    made_by = module.nnx_class if _is_bridge(module) else type(module)
    return str(module.name or getattr(made_by, "__name__", "of NNX"))


@contextlib.contextmanager
def named_errors(module: nn.Module):
    """Inside the context, errors become BadInput with the model's name and the line of its code."""
    try:
        yield
    except (BadInput, MemoryError, OSError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:
        place = place_of(error)
        where = f" ({place})" if place else ""
        reason = reason_of(error)
        raise BadInput(f"model {name_of(module)}{where} failed: {reason}") from error
