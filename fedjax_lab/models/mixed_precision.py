"""Mixed precision: a model's products are computed in a smaller type than float32.

Float32 are: the weights and their gradients, and so everything that methods and servers compute
with them; inputs, logits and features, and so the losses; and normalization layers, with their
weights, moments and running statistics. Values between the layers of a model have the smaller type.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_lab import tree
from fedjax_lab.models import calls, layers
from fedjax_lab.types import Array, Output, PyTree, Weights


def products() -> tuple[type, ...]:
    """The types of layers that compute products."""
    return calls.with_nnx((nn.Dense, nn.Conv, layers.Conv), "Linear", "Conv")


def normalizations() -> tuple[type, ...]:
    """The types of normalization layers."""
    types = layers.BatchNorm, nn.BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm
    return calls.with_nnx(types, "BatchNorm", "LayerNorm", "GroupNorm", "RMSNorm")


def computing_in(
    dtype: Any, apply: Callable[..., Output], exact_layers: tuple[str, ...]
) -> Callable[..., Output]:
    """`Task.apply` with the products of `apply` in `dtype`; inputs and outputs are float32.

    exact_layers: the paths of the layers whose weights are not converted.
    """

    def mixed(
        weights: Weights, x: Array, key: Array | None = None, mask: Array | None = None
    ) -> Output:
        exact, rest = tree.split(tree.within(exact_layers), weights)
        with calls.intercepted(partial(_in_types, dtype)):
            out = apply(tree.join(exact, floats_as(dtype, rest)), x, key, mask)
        return floats_as(jnp.float32, out)

    return mixed


def floats_as(dtype: Any, a: PyTree) -> PyTree:
    """Converts the floating-point leaves of a tree to this type; integers are unchanged."""

    def cast(x):
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, a)


def _in_types(dtype, layer, call, args, kwargs):
    """Calls a layer: products get their input in `dtype`, normalizations compute in float32."""
    if layer.method != "__call__":
        return call(*args, **kwargs)
    if isinstance(layer.module, normalizations()):
        exact = floats_as(jnp.float32, args[0])
        return floats_as(dtype, call(exact, *args[1:], **kwargs))
    if isinstance(layer.module, products()):
        args = floats_as(dtype, args[0]), *args[1:]
    return call(*args, **kwargs)
