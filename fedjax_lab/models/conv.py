"""Convolutions that stay fast in loops and with one kernel per client.

`mapped`, `grouped`, `im2col` and `by_shape` each replace `lax.conv_general_dilated`, as in
`nn.Conv(..., conv_general_dilated=conv.mapped)`. All four compute the same result; they differ in
their implementation under `vmap` if every client has its own kernel. Measurements on a CPU:

- XLA optimizes the layouts of the two gradient convolutions only outside of loops; in a scan or
  fori_loop they are 10 to 100 times too slow. Here they are written as convolutions with standard
  layouts (`_input_gradient`, `_weight_gradient`), for any stride and kernel dilation.
- `vmap` over kernels gives a grouped convolution, several times slower than one per client.
- With few channels, XLA's convolution is inefficient. Then `mapped` uses products with banded
  matrices (models/banded_convolution.py).

On TPUs and GPUs, XLA's gradients are best, with the clients joined with the channels (`grouped`),
except for small convolutions on GPUs (`by_shape`); see models/kernels.py for measurements.

This applies to images `[B, H, W, C]` with kernels `[kh, kw, C, K]`, without groups or input
dilation. Except for `im2col`, only first-order reverse-mode derivatives are supported (a
`custom_vjp`): no `jvp`, and no gradient of a gradient through the convolution itself.

A depthwise convolution, with a kernel `[kh, kw, 1, C]` and C groups, is a sum of shifted products
under all four names. It is elementwise, so that `vmap` changes nothing, and differentiable to any
order. On a CPU it is 3 to 6 times as fast as XLA's, and 100 times in a loop. All other convolutions
are passed to `lax.conv_general_dilated` unchanged.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from fedjax_lab.models import banded_convolution
from fedjax_lab.models.banded_convolution import Window, make_window
from fedjax_lab.models.channelwise import channelwise
from fedjax_lab.types import Array

Convolution = Callable[..., Array]  # the signature of lax.conv_general_dilated

# `by_shape` uses products instead of groups for inputs of few channels, and for few patches without
# padding and strides, with which XLA's compiler for GPUs aborts on ResNet-18.
FEW_CHANNELS = 4
FEW_BYTES = 10 * 2**20  # of one client's patches
_LABELS = ("NHWC", "HWIO", "NHWC")
_HANDLED = "lhs_dilation", "rhs_dilation", "dimension_numbers", "precision"


def grouped(lhs, rhs, window_strides, padding, **settings) -> Array:
    """XLA's own convolution and gradients, with one group of joined channels per client."""
    return _drop_in(_joined, lhs, rhs, window_strides, padding, **settings)


def mapped(lhs, rhs, window_strides, padding, **settings) -> Array:
    """A loop over the clients, for CPUs.

    Measured there: no slower than one convolution per client without a loop, and compiled 2 to 5
    times faster (8 to 32 clients).
    """
    return _drop_in(_banded_or_mapped, lhs, rhs, window_strides, padding, **settings)


def im2col(lhs, rhs, window_strides, padding, **settings) -> Array:
    """Patches times the kernel, a batched matrix product under `vmap`.

    Needs kh * kw times the memory of the input. Differentiable to any order. XLA's compiler for
    GPUs (jaxlib 0.10.2) crashes on the products of ResNet-18.
    """
    return _drop_in(_patches_product, lhs, rhs, window_strides, padding, **settings)


def by_shape(lhs, rhs, window_strides, padding, **settings) -> Array:
    """`im2col` for few channels, or few patches of unpadded images, else `grouped`; for GPUs.

    A kernel that all clients share, as in an evaluation, is applied to all images at once.
    """
    return _drop_in(_small_or_joined, lhs, rhs, window_strides, padding, **settings)


FORMULATIONS = {f.__name__: f for f in (mapped, grouped, im2col, by_shape)}


def _drop_in(
    convolve: Callable[[Window, Array, Array], Array],
    lhs: Array,
    rhs: Array,
    window_strides,
    padding,
    **settings,
) -> Array:
    """Applies `convolve` or `_depthwise` if possible, else `lax.conv_general_dilated`."""
    special = {k: v for k, v in settings.items() if k not in _HANDLED and v not in (None, 1)}
    depthwise = special == {"feature_group_count": lhs.shape[-1]} and rhs.shape[-1] == lhs.shape[-1]
    if (special and not depthwise) or not _is_plain(lhs, rhs, settings):
        return lax.conv_general_dilated(lhs, rhs, window_strides, padding, **settings)
    window = make_window(
        lhs.shape,
        rhs.shape,
        padding,
        strides=tuple(window_strides),
        dilation=tuple(settings.get("rhs_dilation") or (1, 1)),
        precision=settings.get("precision"),
    )
    return (_depthwise if depthwise else convolve)(window, lhs, rhs)


def _is_plain(lhs: Array, rhs: Array, settings: dict) -> bool:
    """Whether these are images [B, H, W, C] and a kernel [kh, kw, C, K], without input dilation."""
    numbers = settings.get("dimension_numbers")
    return (
        lhs.ndim == 4
        and lax.conv_dimension_numbers(lhs.shape, rhs.shape, numbers)
        == lax.conv_dimension_numbers(lhs.shape, rhs.shape, _LABELS)
        and all(d == 1 for d in settings.get("lhs_dilation") or ())
    )


def _banded_or_mapped(window: Window, x: Array, w: Array) -> Array:
    if banded_convolution.is_thin(window, x.shape, w.shape):
        return banded_convolution.convolve(window, x, w)
    return _convolve(_map, window, x, w)


def _small_or_joined(window: Window, x: Array, w: Array) -> Array:
    patches = math.prod((x.shape[0], *_outputs(window, x, w), *w.shape[:-1]))
    plain = window.pads == ((0, 0), (0, 0)) and window.strides == (1, 1)
    few = plain and patches * x.dtype.itemsize <= FEW_BYTES
    return (_small if few or w.shape[2] <= FEW_CHANNELS else _joined)(window, x, w)


def _outputs(window: Window, x: Array, w: Array) -> list[int]:
    """The height and the width of the result."""
    return [
        -(-(size + sum(pads) - (k - 1) * dilation) // stride)
        for size, pads, k, dilation, stride in zip(
            x.shape[1:3],
            window.pads,
            w.shape[:2],
            window.w_dilation,
            window.strides,
            strict=True,
        )
    ]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _small(window: Window, x: Array, w: Array) -> Array:
    """XLA's convolution for one kernel, and `_patches_product` for kernels under `vmap`."""

    @custom_vmap
    def convolve(x, w):
        return _in_groups(window, x, w)

    @convolve.def_vmap
    def _(size, batched, x, w):
        if not batched[1]:
            return _split(convolve(_merge(x), w), size), True
        of_client = partial(_patches_product, window)
        return jax.vmap(of_client, tuple(0 if b else None for b in batched))(x, w), True

    return convolve(x, w)


_small.defvjp(
    lambda window, x, w: (_small(window, x, w), (x, w)),
    lambda window, inputs, dy: jax.vjp(partial(_patches_product, window), *inputs)[1](dy),
)


def _depthwise(window: Window, x: Array, w: Array) -> Array:
    """Images [B, H, W, C], kernel [kh, kw, 1, C] -> [B, H', W', C]."""
    weights = w.reshape(-1, w.shape[-1])
    total: Any = sum(map(jnp.multiply, _patches(window, x, w), weights))
    return total


def _joined(window: Window, x: Array, w: Array) -> Array:
    """Images [B, H, W, C], kernel [kh, kw, C, K] -> [B, H', W', K]."""
    return channelwise(partial(_in_groups, window))(x, w)


def _in_groups(window: Window, x: Array, w: Array) -> Array:
    """Images [B, H, W, M * C], kernels [kh, kw, C, M * K] of M clients -> [B, H', W', M * K]."""
    return lax.conv_general_dilated(
        x,
        w,
        window.strides,
        window.pads,
        rhs_dilation=window.w_dilation,
        dimension_numbers=_LABELS,
        feature_group_count=x.shape[-1] // w.shape[2],
        precision=window.precision,
    )


def _patches_product(window: Window, x: Array, w: Array) -> Array:
    """Images [B, H, W, C], kernel [kh, kw, C, K] -> [B, H', W', K]."""
    flat = jnp.concatenate(_patches(window, x, w), axis=-1)  # [B, H', W', kh * kw * C]
    return jnp.matmul(flat, w.reshape(-1, w.shape[-1]), precision=window.precision)


def _patches(window: Window, x: Array, w: Array) -> list[Array]:
    """The inputs of each of the kernel's kh * kw positions, row by row: [B, H', W', C] each."""
    kh, kw = w.shape[:2]
    (s1, s2), (d1, d2) = window.strides, window.w_dilation
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *((*p, 0) for p in window.pads), (0, 0, 0)))
    rows, cols = x.shape[1] - (kh - 1) * d1, x.shape[2] - (kw - 1) * d2  # numbers of kernel starts
    return [
        x[:, i * d1 : i * d1 + rows : s1, j * d2 : j * d2 + cols : s2]
        for i in range(kh)
        for j in range(kw)
    ]


# The convolution of one client and its two gradients.


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _convolve(formulation: Callable, window: Window, x: Array, w: Array) -> Array:
    """Images [B, H, W, C], kernel [kh, kw, C, K] -> [B, H', W', K]."""
    return _batchable(formulation, window)(x, w)


def _forward(formulation, window, x, w):
    return _convolve(formulation, window, x, w), (x, w)


def _backward(formulation, window, inputs, dy):
    x, w = inputs
    dx = _input_gradient(formulation, window, x.shape, w, dy)
    return dx, _weight_gradient(formulation, window, x, w.shape, dy)


_convolve.defvjp(_forward, _backward)


def _input_gradient(formulation, window: Window, x_shape, w: Array, dy: Array) -> Array:
    """dy, dilated by the stride, convolved with the flipped kernel. Returns [B, H, W, C]."""
    pads = []
    for axis in range(2):
        low = window.w_dilation[axis] * (w.shape[axis] - 1) - window.pads[axis][0]
        spread = window.strides[axis] * (dy.shape[1 + axis] - 1)
        pads.append((low, x_shape[1 + axis] - 1 - spread + window.pads[axis][0]))
    back = window._replace(strides=(1, 1), pads=(pads[0], pads[1]), x_dilation=window.strides)
    return _batchable(formulation, back)(dy, w[::-1, ::-1].swapaxes(2, 3))


def _weight_gradient(formulation, window: Window, x: Array, w_shape, dy: Array) -> Array:
    """x with its channels as batch, convolved with dy as kernel. Returns [kh, kw, C, K]."""
    pads = []
    for axis in range(2):
        reach = window.w_dilation[axis] * (w_shape[axis] - 1)
        spread = window.strides[axis] * (dy.shape[1 + axis] - 1)
        low = window.pads[axis][0]
        pads.append((low, reach + spread + 1 - x.shape[1 + axis] - low))
    both = pads[0], pads[1]
    back = window._replace(strides=window.w_dilation, pads=both, w_dilation=window.strides)
    dw = _batchable(formulation, back)(x.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3))
    return dw.transpose(1, 2, 0, 3)  # [C, kh, kw, K] -> [kh, kw, C, K]


# Batching rules.


def _batchable(formulation: Callable, window: Window) -> Callable[[Array, Array], Array]:
    """The plain convolution; under `vmap` over kernels, `formulation` applies it to each client."""

    plain = partial(_plain, formulation, window)

    @custom_vmap
    def one(x, w):
        return plain(x, w)

    @custom_vmap
    def many(x, w):  # [M, B, H, W, C], [M, kh, kw, C, K] -> [M, B, H', W', K]
        return formulation(plain, x, w)

    @one.def_vmap
    def _(size, batched, x, w):
        if all(batched):
            return many(x, w), True
        if batched[0]:  # shared kernel: the clients' images form one batch
            y = one(_merge(x), w)  # [M * B, H', W', K]
            return _split(y, size), True
        y = one(x, _merge(w.transpose(0, 4, 1, 2, 3)).transpose(1, 2, 3, 0))  # [B, H', W', M * K]
        return y.reshape(*y.shape[:-1], size, -1).transpose(3, 0, 1, 2, 4), True

    @many.def_vmap
    def _(size, batched, x, w):  # a second vmap, for example over seeds: more clients
        x, w = (
            a if is_batched else jnp.broadcast_to(a, (size, *a.shape))
            for a, is_batched in zip((x, w), batched, strict=True)
        )
        return _split(many(_merge(x), _merge(w)), size), True

    return one


def _plain(formulation: Callable, window: Window, x: Array, w: Array) -> Array:
    """Images [B, H, W, C] with one kernel [kh, kw, C, K]."""
    if formulation is _map and banded_convolution.is_thin(window, x.shape, w.shape):
        return banded_convolution.convolve(window, x, w)
    return lax.conv_general_dilated(
        x,
        w,
        window.strides,
        window.pads,
        lhs_dilation=window.x_dilation,
        rhs_dilation=window.w_dilation,
        dimension_numbers=_LABELS,
        precision=window.precision,
    )


def _merge(a: Array) -> Array:
    """[M, N, ...] -> [M * N, ...]."""
    return a.reshape(-1, *a.shape[2:])


def _split(a: Array, size: int) -> Array:
    """[M * N, ...] -> [M, N, ...]."""
    return a.reshape(size, -1, *a.shape[1:])


def _map(plain: Callable, x: Array, w: Array) -> Array:
    return lax.map(lambda client: plain(*client), (x, w))
