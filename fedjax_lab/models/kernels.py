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


def joined_max_pool(x: Array, window: int, stride: int | None = None, padding: int = 0) -> Array:
    """`pooling.by_windows`, with the clients of a `vmap` joined with the channels."""
    return channelwise(lambda x: pooling.by_windows(x, window, stride, padding))(x)


@channelwise
def _bias_relu(y, bias):
    return nn.relu(y + bias)


def activate_joined(y: Array, bias: Array, window: int) -> Array:
    """The maximum first: bias and ReLU keep the order, and so have fewer numbers to go through."""
    return _bias_relu(y if window == 1 else joined_max_pool(y, window), bias)


CPU = Kernels(conv.mapped, pooling.by_slices, activate_by_slices)
GPU = CPU._replace(convolution=conv.grouped)
TPU = Kernels(conv.blocked, joined_max_pool, activate_joined)


def choose(platform: str, convolution: str = "auto") -> Kernels:
    """Those of a platform, "cpu", "gpu" or "tpu"; convolution: "auto" or of `conv.FORMULATIONS`."""
    kernels = {"cpu": CPU, "gpu": GPU, "tpu": TPU}[platform]
    if convolution == "auto":
        return kernels
    return kernels._replace(convolution=conv.FORMULATIONS[convolution])
