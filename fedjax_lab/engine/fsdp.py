"""Fully sharded data parallelism (FSDP): a group of devices holds one model and trains it together.

The devices along a mesh's axis `fsdp` train one client together. Each holds a part of every large
array of the model, of its gradient and of the optimizer's state, and computes on a part of every
batch. The weights of a layer are gathered just before the layer uses them, and their gradients are
reduced and scattered again. The compiler derives all of it from two kinds of constraints that are
set here: the shardings of the server's arrays, and those of a layer's weights and inputs. They
change the results only by rounding errors.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import flax.linen as nn
import jax
from flax.core.scope import Scope
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_lab.types import Array, PyTree

AXIS = "fsdp"
COPY = "gathered"  # the flag of a layer's copy with gathered weights
SMALLEST = 2**16  # fewest elements of a divided array; replicating smaller ones takes less time


def group_size(mesh: Mesh) -> int:
    """The number of devices that hold a model together."""
    return mesh.shape.get(AXIS, 1)


def even(count: int, group: int) -> int:
    """`count` rounded up to a multiple of the group size, so that its devices can divide it."""
    return -(-count // group) * group


def spec(shape: Sequence[int], group: int) -> P:
    """The partition of an array in a group: along the longest axis that the group size divides.

    Of several axes of that length it is the last, since the compiler for TPUs turns a sum of
    gradients into a `reduce-scatter` more often along that one. P(), a whole copy on each device,
    if there is no such axis or if the array is small.
    """
    axes = [axis for axis, length in enumerate(shape) if length % group == 0]
    if not axes or math.prod(shape) < SMALLEST:
        return P()
    longest = max(reversed(axes), key=lambda axis: shape[axis])
    return P(*[None] * longest, AXIS)


def shardings(sharding: NamedSharding, a: PyTree, leading: int = 0) -> PyTree:
    """The shardings of a model's arrays (or of their shapes) that are divided within groups.

    The first `leading` axes, which are not the model's, are divided as in `sharding`.
    """
    mesh = sharding.mesh
    first = [*sharding.spec, *[None] * leading][:leading]

    def one(x):
        return NamedSharding(mesh, P(*first, *spec(x.shape[leading:], group_size(mesh))))

    return jax.tree.map(one, a)


def in_group(fn: Callable, group: int) -> Callable:
    """Wraps fn for a group; it is traced in a `shard_map` that leaves the axis `fsdp` automatic.

    In any model that fn applies, each layer with a kernel works on gathered weights and on the
    device's rows of its input. Without these constraints, the compiler for TPUs multiplies by the
    weights part by part while it passes them around, which took 2.6 times as many cycles (1e9
    parameters on groups of 16 v5e).
    """
    if group == 1:
        return fn

    def run(*args):
        with nn.intercept_methods(partial(_gathered, group)):
            return fn(*args)

    return run


def _gathered(group, call, args, kwargs, context):
    """Calls a layer with gathered weights, and with rows that the group divides."""
    layer, scope = context.module, context.module.scope
    is_layer = context.method_name == "__call__" and scope.path and not scope.has_flag(COPY)
    if not (is_layer and layer.has_variable("params", "kernel")):
        return call(*args, **kwargs)
    whole = jax.tree.map(lambda w: jax.lax.with_sharding_constraint(w, P()), layer.variables)
    # Other hooks and low-rank adapters know the copy of the layer by its path.
    flags = {**scope.flags, COPY: True}
    copy = Scope(whole, scope.rngs, scope.name, path=scope.path, flags=flags)
    return layer.clone(parent=copy, name=None)(_by_row(args[0], group), *args[1:], **kwargs)


def _by_row(x: Array, group: int) -> Array:
    """x [B, ...], divided by row if the group size divides B."""
    if x.ndim == 0 or x.shape[0] % group:
        return x
    return jax.lax.with_sharding_constraint(x, P(AXIS, *[P.UNCONSTRAINED] * (x.ndim - 1)))
