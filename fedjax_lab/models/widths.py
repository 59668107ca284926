"""Which channels of a model's layers belong together, so that a part of them is a narrower model.

A unit is an output channel of a layer. Units of layers that are added to the same stream are the
same unit. If the weights to and from a unit are 0, the unit is 0 and stays 0 in training: the model
computes what a model without it would compute. This holds for activations with act(0) = 0, for
BatchNorm, which does not compare channels, and for LayerNorm and GroupNorm over the units of the
part, which GroupNorm divides into groups anew, in their order.

Which units reach the inputs of which layers is found by passes over one example, in which all
layers output 0 except for one, whose channels output large numbers. ReLU, GELU and SiLU keep these,
and so do poolings, means, sums, reshapes and concatenations.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.models import calls, layers
from fedjax_lab.types import Task

FIRST = 2**17  # the number of the first channel; larger than the number of channels of a layer
PRODUCTS = (nn.Dense, nn.Conv, layers.Conv)
NORMS = (nn.BatchNorm, layers.BatchNorm, nn.LayerNorm, nn.GroupNorm)


class Widths(NamedTuple):
    """The units of a model, and those of each axis of its weights.

    The vector of all units has those of each group, then one for what is never left out, such as
    the channels of images, and then one for each output of the head.
    """

    sizes: tuple[int, ...]  # number of units of each group
    outputs: int  # of the head
    axes: dict[str, tuple[np.ndarray, np.ndarray]]
    # {path of a layer: the places in the vector of its input and output channels}
    divisors: dict[str, int]  # {path of a GroupNorm: a number that divides its channels}

    def leaf_places(self, name: str, ndim: int) -> tuple[np.ndarray, ...]:
        """The places in the vector of the last axes of a leaf of `Weights`.

        Other axes of a kernel have no units.
        """
        layer = name.split("/", 1)[1].rpartition("/")[0]
        if layer not in self.axes:
            raise unknown(f"it has the weights {name}")
        given, made = self.axes[layer]
        return (made,) if ndim == 1 else (given, made)


def unknown(reason: str) -> BadInput:
    """The error for a model of which no part is known to be a narrower model."""
    return BadInput(
        "the method gives clients narrower parts of the model, and those of this model are not"
        f" known: {reason}; use Dense and Conv layers, ReLU, GELU or SiLU, and no normalization,"
        " BatchNorm, GroupNorm or LayerNorm, as in config.model.name=simple_cnn"
    )


def task_widths(task: Task) -> Widths:
    """The units of the task's model. Raises BadInput if they are not known."""
    return model_widths(*model_of(task))


def model_of(task: Task) -> tuple:
    """The arguments of `model_widths`."""
    return task.init, task.apply, task.input_shape, task.layers, task.dense[-1]


@functools.lru_cache(maxsize=8)
def model_widths(init, apply, input_shape, names, head) -> Widths:
    """The units of a model; names: of its layers."""
    shapes = jax.eval_shape(init, jax.random.key(0))
    channels, norms, seen = _seen(apply, shapes, input_shape, names)
    sizes = {name: n for name, n in channels.items() if name not in (head, *norms)}
    joined = {name: name for name in (*sizes, "")}  # the representative of each group; "": inputs
    sources = {
        layer: [_sources(layer, each, sizes, names) for each in zip(*inputs, strict=True)]
        for layer, inputs in seen.items()
    }
    for units in sources.values():
        for of_channel in units:
            _join(joined, of_channel)
    if lost := sizes.keys() - {name for units in sources.values() for u in units for name, _ in u}:
        raise unknown(f"the channels of layer {min(lost)} reach no layer as they are")
    known = _numbered(joined, sizes, sources, head, channels[head])
    known = known._replace(divisors={layer: d for layer, d in norms.items() if d > 1})
    _check_whole_groups(known)
    return known


def _numbered(joined, sizes, sources, head, outputs):
    """The `Widths` of these groups and sources."""
    groups = [name for name in sizes if _group(joined, name) == name]
    ends = np.cumsum([0, *(sizes[name] for name in groups)])
    begin, whole = dict(zip(groups, ends, strict=False)), int(ends[-1])

    def place(name, channel):
        group = _group(joined, name)
        return begin[group] + channel if group else whole

    def made(layer, given):
        if layer == head:
            return whole + 1 + np.arange(outputs, dtype=np.int32)
        if layer not in sizes:
            return given
        return np.array([place(layer, channel) for channel in range(sizes[layer])], np.int32)

    axes = {}
    for layer, units in sources.items():
        given = np.array([place(*unit[0]) for unit in units], np.int32)
        axes[layer] = given, made(layer, given)
    return Widths(tuple(sizes[name] for name in groups), outputs, axes, {})


def _check_whole_groups(widths):
    """Raises BadInput if the channels of a GroupNorm are not a number that a rate determines."""
    for layer in widths.divisors:
        seen = np.bincount(widths.axes[layer][1], minlength=sum(widths.sizes))
        for of_group in np.split(seen, np.cumsum(widths.sizes))[:-1]:
            if len({*of_group}) > 1:
                raise unknown(f"layer {layer}, a GroupNorm, sees only some channels of a layer")


def _seen(apply, shapes, input_shape, names):
    """The output channels of each layer, {path of a normalization: divisor}, and what layers see.

    What layers see is {path: a list of [input channels]}. Leading axis: the layer in `names` whose
    channels are numbered, then the inputs, then nothing.
    """
    made, norms = _outputs(apply, shapes, input_shape)
    for name, leaf in tree.by_name(shapes).items():
        layer = name.split("/", 1)[1].rpartition("/")[0]
        if layer not in made:
            raise unknown(f"layer {layer} has weights of shape {list(leaf.shape)}")

    def probe(source):
        seen = {}

        def see(layer, call, args, kwargs):
            if not is_known(layer):
                return call(*args, **kwargs)
            x = args[0]
            seen[layer.path] = jnp.max(jnp.abs(x), tuple(range(x.ndim - 1)))
            if isinstance(layer.module, NORMS):
                return x
            y = made[layer.path]
            channels = FIRST + jnp.arange(y.shape[-1])
            channels = jnp.where(source == names.index(layer.path), channels, 0)
            return jnp.broadcast_to(channels, y.shape).astype(y.dtype)

        x = jnp.full((1, *input_shape), jnp.where(source == len(names), FIRST, 0), jnp.float32)
        with calls.intercepted(see):
            apply(tree.zeros(shapes), x)
        return seen

    with jax.ensure_compile_time_eval():
        seen = jax.device_get(jax.jit(jax.vmap(probe))(jnp.arange(len(names) + 2)))
    return {layer: y.shape[-1] for layer, y in made.items()}, norms, seen


def _outputs(apply, shapes, input_shape):
    """{path of a layer: its output's shape and type}, and {path of a normalization: divisor}.

    Raises BadInput if parts are not known.
    """
    made: dict[str, Any] = {}
    norms: dict[str, int] = {}

    def note(layer, call, args, kwargs):
        y = call(*args, **kwargs)
        if is_known(layer):
            if getattr(layer.module, "feature_group_count", 1) > 1:
                raise unknown(f"layer {layer.path} has groups of channels")
            if layer.path in made:
                raise unknown(f"layer {layer.path} is used more than once")
            if isinstance(layer.module, NORMS):
                norms[layer.path] = _divisor(layer)
            made[layer.path] = jax.ShapeDtypeStruct(y.shape, y.dtype)
        return y

    x = jax.ShapeDtypeStruct((1, *input_shape), jnp.float32)
    with calls.intercepted(note):
        jax.eval_shape(apply, shapes, x)
    return made, norms


def _divisor(layer):
    """A number that divides the channels of a normalization."""
    norm = layer.module
    if not isinstance(norm, nn.GroupNorm):
        return 1
    if norm.reduction_axes is not None:
        raise unknown(f"layer {layer.path} has reduction_axes")
    return norm.group_size or norm.num_groups


def is_known(layer: calls.Layer) -> bool:
    """Whether a call is that of a layer whose parts are known."""
    return layer.method == "__call__" and isinstance(layer.module, (*PRODUCTS, *NORMS))


def _sources(layer, numbers, sizes, names):
    """The (layer, channel) that reach an input channel; ("", 0) for the model's inputs.

    numbers: what the channel shows for each layer, the inputs, and nothing.
    """
    *of_layers, of_inputs, of_nothing = np.asarray(numbers, float)
    if of_nothing:
        raise unknown(f"the inputs of layer {layer} are not 0 if the layers before it output 0")
    sources = [("", 0)] if of_inputs else []
    for name, number in zip(names, of_layers, strict=True):
        channel = round(number - FIRST)
        if number and (
            not 0 <= channel < sizes.get(name, 0) or abs(number - FIRST - channel) > 0.1
        ):
            raise unknown(f"layer {layer} does not see the channels of layer {name} as they are")
        sources += [(name, channel)] if number else []
    if not sources:
        raise unknown(f"layer {layer} sees no channel as it is")
    return sources


def _join(joined, units):
    """Joins the groups of layers of which the same channels are added."""
    (first, channel), *others = units
    for name, other in others:
        if first and other != channel:
            raise unknown(f"channels {channel} of {first} and {other} of {name} are added")
        a, b = _group(joined, first), _group(joined, name)
        joined[b if a == "" else a] = a if a == "" else b


def _group(joined, name):
    while joined[name] != name:
        name = joined[name]
    return name
