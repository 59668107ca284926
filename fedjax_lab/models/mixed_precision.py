"""A model whose products are computed in a smaller type than its weights have.

Float32 stay: the weights and their gradients, so all that methods and servers do with them, inputs,
logits and features, so the losses, and normalization: its weights, its moments, and the running
statistics. What flows between the layers of a model has the smaller type.
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
    """The types of layers that multiply."""
    return calls.with_nnx((nn.Dense, nn.Conv, layers.Conv), "Linear", "Conv")


def normalizations() -> tuple[type, ...]:
    """The types of layers that normalize."""
    types = layers.BatchNorm, nn.BatchNorm, nn.LayerNorm, nn.GroupNorm
    return calls.with_nnx(types, "BatchNorm", "LayerNorm", "GroupNorm")


def computing_in(
    dtype: Any, apply: Callable[..., Output], exact_layers: tuple[str, ...]
) -> Callable[..., Output]:
    """`Task.apply` with the products of `apply` in `dtype`; float32 goes in and comes out.

    exact_layers: the paths of the layers whose weights stay as they are.
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
    """The tree with its floating-point leaves in this type; integers, such as characters, stay."""

    def cast(x):
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, a)


def _in_types(dtype, layer, call, args, kwargs):
    """A layer's call: a product gets its input in `dtype`, a normalization computes in float32."""
    if layer.method != "__call__":
        return call(*args, **kwargs)
    if isinstance(layer.module, normalizations()):
        exact = floats_as(jnp.float32, args[0])
        return floats_as(dtype, call(exact, *args[1:], **kwargs))
    if isinstance(layer.module, products()):
        args = floats_as(dtype, args[0]), *args[1:]
    return call(*args, **kwargs)
