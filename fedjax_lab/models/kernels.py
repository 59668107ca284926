"""How a net's convolutions and poolings run on a platform; a net takes it as one attribute.

The evidence for each platform, FedAvg on the workloads of launch/speed/workloads.py:

- CPU, measured: see models/conv.py and models/pooling.py.
- TPU, no device yet but its compiler's estimate for a v5e, in chunks of 5 clients: a round of A1
  takes 29 ms and 338 MB of temporary memory, one of W1 25 ms and 396 MB. Before, in the best width
  of each: XLA's convolutions and windows under a plain `vmap` 42 ms (575 MB) and 67 ms; with slices
  62 ms (854 MB) and 74 ms; im2col and slices 150 ms (6,464 MB) and 321 ms. Taking the maximum
  before bias and ReLU saves A1 about 5 ms. Clients in blocks of four, their kernels the diagonal
  of a dense one, make it 28 and 29 ms for four times the products.
- GPU, no device yet but the compiled programs for an H100, kernels launched and bytes touched in a
  round, all clients at once: A1 254 and 19 GB, W1 1,136 and 21 GB; with windows 264 and 20, 1,316
  and 26; with im2col and slices 259 and 31, 1,166 and 42, and on ResNet-18 XLA aborts the process.
  Which is faster, only a device can tell.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn

from fedjax_lab.models import conv, pooling
from fedjax_lab.models.channelwise import channelwise
from fedjax_lab.types import Array


class Kernels(NamedTuple):
    """The formulations of a net's layers on images [B, H, W, C].

    Their numbers differ by rounding; in bfloat16 also in which of two tied elements of a pooling
    window gets the gradient.
    """

    convolution: conv.Convolution
    max_pool: pooling.MaxPool
    activate: Callable[[Array, Array, int], Array]
    # (y, bias [C], window) -> max_pool(relu(y + bias), window); a window of 1 pools nothing


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
TPU = Kernels(conv.grouped, joined_max_pool, activate_joined)


def choose(platform: str, convolution: str = "auto") -> Kernels:
    """The kernels of a platform: "cpu", "gpu" or "tpu".

    convolution: a name of `conv.FORMULATIONS`, or "auto" for the platform's.
    """
    kernels = {"cpu": CPU, "gpu": GPU, "tpu": TPU}[platform]
    if convolution == "auto":
        return kernels
    return kernels._replace(convolution=conv.FORMULATIONS[convolution])
