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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.models import calls, layers
from fedjax_lab.types import Array, Output, Task, Weights

FIRST = 2**17  # the number of the first channel; larger than the number of channels of a layer
MOST_LEVELS = 8  # programs for narrower models in a run
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

    def of_leaf(self, name: str, ndim: int) -> tuple[np.ndarray, ...]:
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


def of_task(task: Task) -> Widths:
    """The units of the task's model. Raises BadInput if they are not known."""
    return _of_model(*_model(task))


def _model(task):
    return task.init, task.apply, task.input_shape, task.layers, task.dense[-1]


@functools.lru_cache(maxsize=8)
def _of_model(init, apply, input_shape, names, head):
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
            if not _is_known(layer):
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
        if _is_known(layer):
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


def _is_known(layer):
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


# Parts of a model.


def of_part(widths: Widths, of_group, classes: Array | None = None) -> Array:
    """The vector of all units, 1 if they are in a part and else 0.

    of_group: (number of the group, its size n) -> which of its units are in the part, [n].
    classes: which outputs of the head are, [K]; None: all.
    """
    groups = [of_group(i, size) for i, size in enumerate(widths.sizes)]
    outputs = jnp.ones(widths.outputs) if classes is None else classes
    return jnp.concatenate([*groups, jnp.ones(1), outputs]).astype(jnp.float32)


def window(rate: Array, start: Array | int, size: int) -> Array:
    """The first ceil(rate * size) units [size] from `start` on, in a circle."""
    return (jnp.arange(size) - start) % size < number(rate, size)


def number(rate: Array, size: int) -> Array:
    """ceil(rate * size), where a rate may be rounded."""
    return jnp.ceil(rate * size - 1e-3)


def masked(widths: Widths, units: Array, weights: Weights) -> Weights:
    """The weights with 0 outside of a part; units: as from `of_part`."""

    def one(name, leaf):
        for axis, places in zip((-1, -2), reversed(widths.of_leaf(name, leaf.ndim)), strict=False):
            of_axis = units[places]
            leaf = leaf * (of_axis if axis == -1 else of_axis[:, None])
        return leaf

    return tree.map_named(one, weights)


def applied(widths: Widths, units: Array, apply: Callable[..., Output]) -> Callable[..., Output]:
    """`Task.apply` for the masked weights of a part, or for those of the narrower model.

    Moments of LayerNorm and GroupNorm are of the part; other layers have their kernels' channels.
    """

    def of_weights(weights, *args):
        leaves = tree.by_name(weights.params)
        channels = {n.rpartition("/")[0]: leaf.shape[-1] for n, leaf in leaves.items()}

        def in_part(layer, call, args, kwargs):
            if not _is_known(layer):
                return call(*args, **kwargs)
            if isinstance(layer.module, (nn.LayerNorm, nn.GroupNorm)):
                return _normalized(layer.module, units[widths.axes[layer.path][1]], call, *args)
            if isinstance(layer.module, NORMS):
                return call(*args, **kwargs)
            with calls.field(layer.module, "features", channels[layer.path]):
                return call(*args, **kwargs)

        with calls.intercepted(in_part):
            return apply(weights, *args)

    return of_weights


def _normalized(norm, of_channels, call, x):
    """LayerNorm or GroupNorm of the channels in a part; those of a narrower model all are."""
    if x.shape[-1] < len(of_channels):
        return call(x)
    if isinstance(norm, nn.GroupNorm):
        y = _group_norm(norm, of_channels, x)
    else:
        y = call(x, mask=of_channels > 0)
    return y * of_channels.astype(y.dtype)


def _group_norm(norm, of_channels, x):
    """GroupNorm of x [B, ..., n] with the moments of the channels in a part."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    member = _members(norm, of_channels).astype(x.dtype)  # [n, G]
    share = member / jnp.maximum(jnp.sum(member, 0), 1)
    product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)  # no TF32, no bfloat16

    def mean(a):  # [B, ..., n] -> that of each channel's group, [B, 1, ..., n]
        of_channel = jnp.mean(a, tuple(range(1, a.ndim - 1)), keepdims=True)
        return product(product(of_channel, share), member.T)

    centered = x - mean(x)
    y = centered * jax.lax.rsqrt(mean(centered**2) + norm.epsilon)
    weights = norm.variables.get("params", {})
    return y * weights.get("scale", 1.0) + weights.get("bias", 0.0)


def _members(norm, of_channels):
    """Which channels are in which group of a GroupNorm, [n, G]; none that are not in the part."""
    kept = of_channels.astype(jnp.int32)
    rank, k = jnp.cumsum(kept) - 1, jnp.sum(kept)
    if norm.group_size:
        group, count = rank // norm.group_size, len(kept) // norm.group_size
    else:
        group, count = rank * norm.num_groups // k, norm.num_groups
    return jax.nn.one_hot(group, count) * kept[:, None]


def form(
    widths: Widths, units: Array, rate: float, like: Weights
) -> tuple[Callable[[Weights], Weights], Callable[[Weights], Weights]]:
    """(weights -> those of the narrower model that is a part, the inverse, with 0 elsewhere).

    units: as from `of_part`, with all outputs and ceil(rate * size) units of each group.
    like: weights of the whole model.
    """
    has = _first_units(widths, rate)

    def chosen(axis):
        if has[axis].all():
            return np.arange(len(axis))
        return jnp.argsort(-units[axis], stable=True)[: int(has[axis].sum())]

    def places(name, ndim):
        return (..., *jnp.ix_(*map(chosen, widths.of_leaf(name, ndim))))

    def shrink(weights):
        return tree.map_named(lambda name, leaf: leaf[places(name, leaf.ndim)], weights)

    def expand(small):
        of = tree.by_name(small)

        def one(name, leaf):
            return jnp.zeros_like(leaf).at[places(name, leaf.ndim)].set(of[name])

        return tree.map_named(one, like)

    return shrink, expand


def _first_units(widths, rate):
    """Which units are in a part of the first ones of each group."""
    hidden = [np.arange(n) < np.ceil(np.float32(rate) * n - 1e-3) for n in widths.sizes]
    return np.concatenate([*hidden, np.ones(1 + widths.outputs, bool)])


def check_groups(widths: Widths, rates: Sequence[float], key: str) -> None:
    """Raises BadInput if a GroupNorm cannot divide its channels in parts with these rates.

    key: the setting with the rates.
    """

    def kept(layer, rate):
        return int(_first_units(widths, rate)[widths.axes[layer][1]].sum())

    def fits(rate):
        return all(kept(layer, rate) % d == 0 for layer, d in widths.divisors.items())

    for layer, divisor in widths.divisors.items():
        n = len(widths.axes[layer][1])
        for rate in rates:
            if kept(layer, rate) % divisor:
                shares = filter(fits, (k / n for k in range(divisor, n + 1, divisor)))
                near = min(shares, key=lambda share: abs(share - rate))
                raise BadInput(
                    f"{key}={rate:g} leaves {kept(layer, rate)} of the {n} channels of layer"
                    f" {layer}, a GroupNorm whose number of channels must be a multiple of"
                    f" {divisor}; the nearest rate is {near:g}"
                )


def levels(task: Task) -> tuple[float, ...]:
    """The capacities of the run's clients below 1 for which the narrower model can be trained.

    Its outputs are compared with those of the masked model, in training mode: they are others if
    the model's code uses channels by number, or if it has dropout. There are none if clients have
    more than `MOST_LEVELS` capacities, since each is a program of its own.
    """
    below = sorted({rate for rate in task.levels if rate < 1})
    if len(below) > MOST_LEVELS:
        return ()
    return tuple(rate for rate in below if _agrees(_model(task), rate))


@functools.lru_cache(maxsize=64)
def _agrees(model, rate):
    init, apply, input_shape, *_ = model
    known, rng = _of_model(*model), np.random.default_rng(0)
    shapes = jax.eval_shape(init, jax.random.key(0))
    weights = jax.tree.map(lambda a: rng.normal(size=a.shape).astype(a.dtype), shapes)
    x = rng.uniform(size=(3, *input_shape)).astype(np.float32)

    def logits(w, x):
        units = of_part(known, lambda i, n: window(rate, 1, n))
        w, rest = masked(known, units, w), (jax.random.key(0), jnp.array([1.0, 1.0, 0.0]))
        shrink, _ = form(known, units, rate, w)
        run = applied(known, units, apply)
        return run(w, x, *rest).logits[:2], run(shrink(w), x, *rest).logits[:2]

    try:
        whole, narrow = jax.jit(logits).lower(weights, x).compile()(weights, x)
    except (FlaxError, TypeError, ValueError):  # shapes that the model's code states
        return False
    return np.allclose(whole, narrow, rtol=0, atol=1e-2 * np.max(np.abs(whole)))


def total(widths: Widths, units: Array, weights: Weights, share: Array) -> Weights:
    """For each number of the weights, the sum of the shares of the clients whose part has it.

    units: [M, units]. share: [M]. Axes of a kernel that have no units are left out.
    """

    def one(name, leaf):
        *given, made = (units[:, places] for places in widths.of_leaf(name, leaf.ndim))
        left = share[:, None] * made
        full = jax.lax.Precision.HIGHEST  # no TF32, no bfloat16
        return jnp.matmul(given[0].T, left, precision=full) if given else jnp.sum(left, 0)

    return tree.map_named(one, weights)


def num_bytes(widths: Widths, units: Array, weights: Weights) -> Array:
    """The bytes of the numbers in a part."""
    counts = total(widths, units[None], weights, jnp.ones(1))
    each = jax.tree.map(
        lambda n, a: jnp.sum(n) * (a.size // n.size) * a.dtype.itemsize, counts, weights
    )
    return sum(jax.tree.leaves(each), jnp.float32(0))
