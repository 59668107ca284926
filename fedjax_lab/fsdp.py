"""Models that a group of devices holds together: fully sharded data parallelism (FSDP).

The devices along a mesh's axis `fsdp` train one client together. Each holds a part of every large
array of the model, so also of its gradient and of what the optimizer keeps, and computes on a part
of every batch. The weights of a layer are gathered just before the layer uses them, and their
gradients are summed and divided again. The compiler derives all of it from two facts that it is
told here: where the server's arrays lie, and what a layer works on. No number depends on them but
by rounding.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_lab.types import Array, PyTree

AXIS = "fsdp"
SMALLEST = 2**16  # numbers of an array that is divided: gathering a smaller one costs more time


def group_size(mesh: Mesh) -> int:
    """How many devices hold a model together."""
    return mesh.shape.get(AXIS, 1)


def even(count: int, group: int) -> int:
    """The smallest multiple of the group from `count` on: rows that its devices can share."""
    return -(-count // group) * group


def spec(shape: Sequence[int], group: int) -> P:
    """How a group of so many devices divides an array: along its longest axis that they divide.

    Of several as long it is the last, since the compiler for TPUs turns a sum of gradients into a
    `reduce-scatter` there more often. P() where there is none, or where the array is small: each
    device has it whole.
    """
    axes = [axis for axis, length in enumerate(shape) if length % group == 0]
    if not axes or math.prod(shape) < SMALLEST:
        return P()
    longest = max(reversed(axes), key=lambda axis: shape[axis])
    return P(*[None] * longest, AXIS)


def shardings(sharding: NamedSharding, a: PyTree, leading: int = 0) -> PyTree:
    """Where arrays of a model's shapes lie that groups divide (arrays or their shapes).

    The first `leading` axes, which are not the model's, lie as `sharding` says.
    """
    mesh = sharding.mesh
    first = [*sharding.spec, *[None] * leading][:leading]

    def one(x):
        return NamedSharding(mesh, P(*first, *spec(x.shape[leading:], group_size(mesh))))

    return jax.tree.map(one, a)


def in_group(fn: Callable, group: int) -> Callable:
    """fn, traced inside a `shard_map` that leaves the axis `fsdp` to the compiler, on a group.

    Each layer with a kernel, of any model that fn applies, works on whole weights and on the
    device's rows of its input. Left to itself, the compiler for TPUs multiplies by the weights part
    by part while it passes them around, which took 2.6 times as many cycles (1e9 parameters on
    groups of 16 v5e).
    """
    if group == 1:
        return fn

    def run(*args):
        with nn.intercept_methods(partial(_gathered, group)):
            return fn(*args)

    return run


def _gathered(group, call, args, kwargs, context):
    """A layer's call on its gathered weights, and on rows that the group divides."""
    layer = context.module
    is_layer = context.method_name == "__call__" and layer.path  # () is the copy made below
    if not (is_layer and layer.has_variable("params", "kernel")):
        return call(*args, **kwargs)
    whole = jax.tree.map(lambda w: jax.lax.with_sharding_constraint(w, P()), layer.variables)
    x = _by_row(args[0], group)
    return layer.clone(parent=None, name=None).apply(whole, x, *args[1:], **kwargs)


def _by_row(x: Array, group: int) -> Array:
    """x [B, ...], divided by row where the group divides B."""
    if x.ndim == 0 or x.shape[0] % group:
        return x
    return jax.lax.with_sharding_constraint(x, P(AXIS, *[P.UNCONSTRAINED] * (x.ndim - 1)))
