"""Layers that run as if the clients of a `vmap` were more channels."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from fedjax_lab.types import Array


def channelwise(layer: Callable[..., Array]) -> Callable[..., Array]:
    """A layer f(x, *weights) that treats each channel apart, or each group of channels.

    x and the result have the shape [B, ..., C], weights [..., C]; C may be any multiple of the
    layer's own. Under `vmap` the clients join the last axis, `layer` runs once on [B, ..., M * C],
    and the result is split again: what one layer splits the next one joins, so that XLA keeps the
    joined form between them. In it the last axis is long enough to fill a TPU's 128 lanes. Where
    all clients share the weights, their examples become rows of one batch instead, [M * B, ..., C].

    Only reverse-mode derivatives of first order exist (a `custom_vjp`).
    """

    def gradients(x, weights, dy):
        return jax.vjp(layer, x, *weights)[1](dy)

    forward, backward = _joining(layer, shares_weights=True), _joining(gradients)

    @jax.custom_vjp
    def run(x, *weights):
        return forward(x, *weights)

    def run_forward(x, *weights):
        return forward(x, *weights), (x, weights)

    run.defvjp(run_forward, lambda inputs, dy: backward(*inputs, dy))
    return run


def _joining(function: Callable, shares_weights: bool = False) -> Callable:
    """`function`, whose batching rule joins the clients with the last axis of every array.

    shares_weights: whether examples of clients that share the weights may become rows of one batch.
    Gradients must not do that, because each client has a gradient of its own.
    """

    @custom_vmap
    def run(*inputs):
        return function(*inputs)

    @run.def_vmap
    def _(size, batched, x, *rest):
        if shares_weights and rest and not any(jax.tree.leaves(batched[1:])):
            y = run(x.reshape(-1, *x.shape[2:]), *rest)
            return y.reshape(size, -1, *y.shape[1:]), True
        join = partial(_join, size)
        out = run(*jax.tree.map(join, tuple(batched), (x, *rest)))
        split = jax.tree.map(lambda a: _split(a, size), out)
        return split, jax.tree.map(lambda _: True, out)

    return run


def _join(size: int, is_batched: bool, a: Array) -> Array:
    """[M, ..., C], or [..., C] of all clients -> [..., M * C]."""
    a = jnp.moveaxis(a, 0, -2) if is_batched else jnp.stack([a] * size, -2)
    return a.reshape(*a.shape[:-2], -1)


def _split(a: Array, size: int) -> Array:
    """[..., M * C] -> [M, ..., C]."""
    return jnp.moveaxis(a.reshape(*a.shape[:-1], size, -1), -2, 0)
