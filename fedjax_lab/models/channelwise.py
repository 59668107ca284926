"""Layers that, under `vmap`, treat the clients as additional channels."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from fedjax_lab.types import Array


def channelwise(layer: Callable[..., Array]) -> Callable[..., Array]:
    """Makes `vmap` efficient for a layer f(x, *weights) that acts on single channels or groups.

    x and the result have shape [B, ..., C], and weights [..., C]; C may be any multiple of the
    layer's own number of channels. Under `vmap`, the clients are joined with the last axis, `layer`
    runs once on [B, ..., M * C], and the result is split again. If several such layers follow one
    another, XLA keeps the joined form between them, whose last axis is long enough to fill a TPU's
    128 lanes. If all clients share the weights, their examples become rows of one batch instead,
    [M * B, ..., C].

    Supports only first-order reverse-mode derivatives (a `custom_vjp`).
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
    """`function` with a batching rule that joins the clients with the last axis of every array.

    shares_weights: whether examples of clients that share the weights may become rows of one batch.
    Gradients must not do that, because each client has its own gradient.
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
    """[M, ..., C], or [..., C] shared by all clients -> [..., M * C]."""
    a = jnp.moveaxis(a, 0, -2) if is_batched else jnp.stack([a] * size, -2)
    return a.reshape(*a.shape[:-2], -1)


def _split(a: Array, size: int) -> Array:
    """[..., M * C] -> [M, ..., C]."""
    return jnp.moveaxis(a.reshape(*a.shape[:-1], size, -1), -2, 0)
