"""Parts of a model: some of its units (`widths`), with which a narrower model computes.

The weights of a part are those of the whole model, with 0 outside of it, or those of the narrower
model itself. Both are trained to the same numbers, up to rounding.
"""

import functools
from collections.abc import Callable, Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.models import calls
from fedjax_lab.models.widths import NORMS, Widths, is_known, model_of, model_widths
from fedjax_lab.types import Array, Output, Task, Weights

MOST_LEVELS = 8  # programs for narrower models in a run


def part_units(widths: Widths, of_group, classes: Array | None = None) -> Array:
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
    """The weights with 0 outside of a part; units: as from `part_units`."""

    def one(name, leaf):
        for axis, places in zip(
            (-1, -2), reversed(widths.leaf_places(name, leaf.ndim)), strict=False
        ):
            of_axis = units[places]
            leaf = leaf * (of_axis if axis == -1 else of_axis[:, None])
        return leaf

    return tree.map_named(one, weights)


def applied(widths: Widths, units: Array, apply: Callable[..., Output]) -> Callable[..., Output]:
    """`Task.apply` for the masked weights of a part, or for those of the narrower model.

    Moments of LayerNorm and GroupNorm are of the part; other layers have their kernels' channels.
    """

    def narrow_apply(weights, *args):
        leaves = tree.by_name(weights.params)
        channels = {n.rpartition("/")[0]: leaf.shape[-1] for n, leaf in leaves.items()}

        def in_part(layer, call, args, kwargs):
            if not is_known(layer):
                return call(*args, **kwargs)
            if isinstance(layer.module, (nn.LayerNorm, nn.GroupNorm)):
                return _normalized(layer.module, units[widths.axes[layer.path][1]], call, *args)
            if isinstance(layer.module, NORMS):
                return call(*args, **kwargs)
            with calls.field(layer.module, "features", channels[layer.path]):
                return call(*args, **kwargs)

        with calls.intercepted(in_part):
            return apply(weights, *args)

    return narrow_apply


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

    units: as from `part_units`, with all outputs and ceil(rate * size) units of each group.
    like: weights of the whole model.
    """
    has = _first_units(widths, rate)

    def chosen(axis):
        if has[axis].all():
            return np.arange(len(axis))
        return jnp.argsort(-units[axis], stable=True)[: int(has[axis].sum())]

    def places(name, ndim):
        return (..., *jnp.ix_(*map(chosen, widths.leaf_places(name, ndim))))

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
    return tuple(rate for rate in below if _agrees(model_of(task), rate))


@functools.lru_cache(maxsize=64)
def _agrees(model, rate):
    init, apply, input_shape, *_ = model
    known, rng = model_widths(*model), np.random.default_rng(0)
    shapes = jax.eval_shape(init, jax.random.key(0))
    weights = jax.tree.map(lambda a: rng.normal(size=a.shape).astype(a.dtype), shapes)
    x = rng.uniform(size=(3, *input_shape)).astype(np.float32)

    def logits(w, x):
        units = part_units(known, lambda i, n: window(rate, 1, n))
        w, key, mask = masked(known, units, w), jax.random.key(0), jnp.array([1.0, 1.0, 0.0])
        shrink, _ = form(known, units, rate, w)
        run = applied(known, units, apply)
        return run(w, x, key, mask).logits[:2], run(shrink(w), x, key, mask).logits[:2]

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
        *given, made = (units[:, places] for places in widths.leaf_places(name, leaf.ndim))
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
