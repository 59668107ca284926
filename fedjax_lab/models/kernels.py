"""The implementations of a net's convolutions and poolings on each platform.

A net takes them as one attribute, `kernels`. They were chosen for FedAvg on the workloads A1 and W1
of launch/speed/workloads.py. The numbers are those by which they were chosen; those of the current
code are in docs/accelerators.md:

- CPU: by measurements; see models/conv.py, models/banded_convolution.py and models/pooling.py.
- TPU: by the compiler's estimates for a v5e (no device yet), in chunks of 5 clients. A round of A1
  takes 29 ms and 338 MB of temporary memory, a round of W1 25 ms and 396 MB. Alternatives, each
  with its best chunk size: XLA's convolutions and windows under a plain `vmap` 42 ms (575 MB) and
  67 ms; with slices 62 ms (854 MB) and 74 ms; im2col and slices 150 ms (6,464 MB) and 321 ms.
  Taking the maximum before bias and ReLU saves about 5 ms on A1. Blocks of four clients, with their
  kernels as the diagonal of a dense one, take 28 and 29 ms for four times the products.
- GPU: by measurements on an H100 (jax 0.11.2, TF32 products), milliseconds of a round: products in
  all layers A1 10.4, A2 181, W1 21.5, W4 36.8; groups in all layers 13.8, 438, 22.6, 31.5; products
  for one or three channels and groups otherwise 12.1, 358, 21.3, 30.7. In a grouped convolution of
  few channels or small images, cuDNN runs many small kernels. One client's patches of the second
  layer are 9.0 MB on A1, 2.0 on A2, 12.5 on W1, 20.1 on W4: up to 10 MiB without padding take
  products. A kernel that clients share, as in an evaluation, is one convolution: with
  products, the evaluation of A1 took 11.0 instead of 4.6. Command buffers for loops (XLA's WHILE)
  change A1 and W1 by less than 2 % and slow W2 from 0.18 to 0.65, so that they stay off. By the
  compiled programs, pooling by windows launches more kernels than slices (A1 264 and 254 a round),
  and pooling before bias and ReLU touches less memory than after them: A1 16.8 instead of 17.2 GB a
  round, W1 17.0 and 17.4.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn

from fedjax_lab.models import banded_convolution, conv, pooling
from fedjax_lab.models.banded_convolution import make_window
from fedjax_lab.models.channelwise import channelwise
from fedjax_lab.types import Array


class Kernels(NamedTuple):
    """The implementations of a net's layers on images [B, H, W, C].

    Their results differ by rounding errors; in bfloat16, they may also differ in which of two equal
    elements of a pooling window gets the gradient.
    """

    convolution: conv.Convolution
    max_pool: pooling.MaxPool
    activate: Callable[[Array, Array, int], Array]
    # (y, bias [C], window) -> max_pool(relu(y + bias), window); no pooling for a window of 1

    def layer(self, x: Array, kernel: Array, bias: Array, padding, window: int) -> Array:
        """activate(convolution(x)); on a CPU in one step for few channels and a window of 2."""
        sliding = make_window(x.shape, kernel.shape, padding)
        if (
            self == CPU
            and window == 2
            and banded_convolution.is_thin(sliding, x.shape, kernel.shape)
        ):
            return banded_convolution.convolve_and_pool(sliding, x, kernel, bias)
        labels = ("NHWC", "HWIO", "NHWC")
        y = self.convolution(x, kernel, (1, 1), padding, dimension_numbers=labels)
        return self.activate(y, bias, window)


def activate_by_slices(y: Array, bias: Array, window: int) -> Array:
    """Bias, ReLU, and max-pooling by slices."""
    y = nn.relu(y + bias)
    return y if window == 1 else pooling.by_slices(y, window)


def activate_pooled(y: Array, bias: Array, window: int) -> Array:
    """Max-pooling by slices, then bias and ReLU: they are monotone, and fewer numbers are left."""
    return nn.relu((y if window == 1 else pooling.by_slices(y, window)) + bias)


def joined_max_pool(x: Array, window: int, stride: int | None = None, padding: int = 0) -> Array:
    """`pooling.by_windows`, with the clients of a `vmap` joined with the channels."""
    return channelwise(lambda x: pooling.by_windows(x, window, stride, padding))(x)


@channelwise
def _bias_relu(y, bias):
    return nn.relu(y + bias)


def activate_joined(y: Array, bias: Array, window: int) -> Array:
    """Max-pooling before bias and ReLU: they are monotone, and fewer numbers are left."""
    return _bias_relu(y if window == 1 else joined_max_pool(y, window), bias)


CPU = Kernels(conv.mapped, pooling.by_slices, activate_by_slices)
GPU = Kernels(conv.by_shape, pooling.by_slices, activate_pooled)
TPU = Kernels(conv.grouped, joined_max_pool, activate_joined)


def choose(platform: str, convolution: str = "auto") -> Kernels:
    """The kernels of a platform: "cpu", "gpu" or "tpu".

    convolution: a name in `conv.FORMULATIONS`, or "auto" for the default of the platform.
    """
    kernels = {"cpu": CPU, "gpu": GPU, "tpu": TPU}[platform]
    if convolution == "auto":
        return kernels
    return kernels._replace(convolution=conv.FORMULATIONS[convolution])
