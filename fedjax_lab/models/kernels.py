"""How a net's convolutions and poolings run on a platform: nets take it as one attribute.

`choose` goes by this evidence:

- cpu, measured: convolutions of one client after another, pooling by slices (models/conv.py,
  models/pooling.py).
- tpu, by the estimate of its compiler for a v5e: TABLE
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn

from fedjax_lab.models import conv, pooling
from fedjax_lab.models.channelwise import channelwise
from fedjax_lab.types import Array


class Kernels(NamedTuple):
    """The formulations of a net's layers on images [B, H, W, C]; the numbers are the same."""

    convolution: conv.Convolution
    max_pool: pooling.MaxPool
    activate: Callable[[Array, Array, int], Array]
    """(y, bias [C], window): max_pool(relu(y + bias), window)."""


def activate_by_slices(y: Array, bias: Array, window: int) -> Array:
    """Bias, ReLU, and maxima by slices."""
    y = nn.relu(y + bias)
    return y if window == 1 else pooling.by_slices(y, window)


@channelwise
def _bias_relu(y, bias):
    return nn.relu(y + bias)


def activate_late(y: Array, bias: Array, window: int) -> Array:
    """The maximum first: bias and ReLU, which keep the order, then have less to do."""
    return _bias_relu(y if window == 1 else max_pool_by_windows(y, window), bias)


def max_pool_by_windows(
    x: Array, window: int, stride: int | None = None, padding: int = 0
) -> Array:
    """`pooling.by_windows` on joined channels."""
    return channelwise(lambda x: pooling.by_windows(x, window, stride, padding))(x)


CPU = Kernels(conv.mapped, pooling.by_slices, activate_by_slices)
ACCELERATOR = Kernels(conv.blocked, max_pool_by_windows, activate_late)


def choose(platform: str, convolution: str = "auto") -> Kernels:
    """Those of a platform, "cpu", "gpu" or "tpu"; convolution: a name of `conv.FORMULATIONS`."""
    kernels = CPU if platform == "cpu" else ACCELERATOR
    if platform == "gpu":
        kernels = kernels._replace(convolution=conv.grouped)
    if convolution != "auto":
        kernels = kernels._replace(convolution=conv.FORMULATIONS[convolution])
    return kernels
