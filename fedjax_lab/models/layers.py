"""Layers that match PyTorch: initialization, batch normalization, average pooling."""

import math
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fedjax_lab.errors import BadInput
from fedjax_lab.models.kernels import CPU, Kernels
from fedjax_lab.ranges import Within
from fedjax_lab.types import Array

MOMENTUM = 0.9  # running = 0.9 running + 0.1 batch; PyTorch's momentum is 0.1
EPSILON = 1e-5


def torch_uniform(fan_in: float):
    """PyTorch's initializer of dense and convolutional layers: U(+-1/sqrt(fan_in))."""
    bound = 1 / math.sqrt(fan_in)

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def dense(x: Array, features: int, name: str | None = None) -> Array:
    """A dense layer initialized as in PyTorch, [B, D] -> [B, features]; for compact modules."""
    init = torch_uniform(x.shape[-1])
    return nn.Dense(features, kernel_init=init, bias_init=init, name=name)(x)


def first_affine(k_kernel: Array, k_bias: Array, inputs: int, features: int) -> dict[str, Array]:
    """Initial weights {kernel, bias} of a dense layer outside of any module, as in `dense`."""
    init = torch_uniform(inputs)
    return {"kernel": init(k_kernel, (inputs, features)), "bias": init(k_bias, (features,))}


def affine(weights: dict[str, Array], x: Array) -> Array:
    """Applies a dense layer to x [B, D]: [B, features]."""
    return x @ weights["kernel"] + weights["bias"]


def conv(
    x: Array,
    features: int,
    kernel: int,
    *,
    padding="VALID",
    strides: int = 1,
    groups: int = 1,
    use_bias: bool = True,
    kernel_init: nn.initializers.Initializer | None = None,
    kernels: Kernels = CPU,
    name: str | None = None,
) -> Array:
    """A square convolution; call it in a compact module. [B, H, W, C] -> [B, H', W', features].

    Bias and (unless `kernel_init` is given) kernel are initialized as in PyTorch.
    """
    init = torch_uniform(kernel * kernel * x.shape[-1] // groups)
    return nn.Conv(
        features,
        (kernel, kernel),
        strides=strides,
        padding=padding,
        feature_group_count=groups,
        use_bias=use_bias,
        kernel_init=kernel_init or init,
        bias_init=init,
        conv_general_dilated=kernels.convolution,
        name=name,
    )(x)


class Conv(nn.Module):
    """A square convolution with bias, ReLU, and a `pool` x `pool` max-pooling (1: none).

    Parameters have the same names and initial values as in `conv`.
    """

    features: int
    kernel: int
    padding: str | int = "VALID"
    pool: int = 1
    kernels: Kernels = CPU

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """[B, H, W, C] -> [B, H', W', features]."""
        shape = (self.kernel, self.kernel, x.shape[-1], self.features)
        init = torch_uniform(math.prod(shape[:3]))
        kernel = self.param("kernel", init, shape)
        bias = self.param("bias", init, (self.features,))
        p = self.padding
        pads = p if isinstance(p, str) else ((p, p), (p, p))
        return self.kernels.layer(x, kernel, bias, pads, self.pool)


MOST_LAYERS = 1000  # each of them is traced
Layers = Annotated[int, Within(1, MOST_LAYERS)]


def check_heads(width: int, heads: int) -> None:
    """Raises BadInput unless the width of a token can be divided among attention heads."""
    if width % heads:
        raise BadInput(f"config.model.heads={heads} does not divide config.model.width={width}")


def check_images(name: str, shape: tuple[int, ...], smallest: int) -> None:
    """Raises BadInput unless `shape` is that of images [H, W, C] of at least `smallest` pixels."""
    shown = "x".join(map(str, shape))
    if len(shape) != 3:
        raise BadInput(f"{name} needs images (height x width x channels), not {shown}")
    if min(shape[:2]) < smallest:
        raise BadInput(f"{name} needs images of at least {smallest}x{smallest}, not {shown}")


def avg_pool(x: Array, window: int, stride: int | None = None, padding: int = 0) -> Array:
    """Average pooling over square windows at distance `stride` (default: the window); [B, H, W, C].

    Padding counts as zeros, as in PyTorch by default: every sum is divided by window^2.
    """
    step = stride or window
    return nn.avg_pool(x, (window, window), (step, step), ((padding, padding), (padding, padding)))


def adaptive_avg_pool(x: Array, out: int) -> Array:
    """Averages over `out` x `out` bins that cover the image: [B, H, W, C] -> [B, out, out, C].

    Bin k of an axis of size n is [floor(k n / out), ceil((k + 1) n / out)), so that neighboring
    bins overlap if `out` does not divide n.
    """
    for axis in (1, 2):
        n = x.shape[axis]
        bins = [(k * n // out, -(-(k + 1) * n // out)) for k in range(out)]
        means = [lax.slice_in_dim(x, *ends, axis=axis).mean(axis) for ends in bins]
        x = jnp.stack(means, axis)
    return x


class BatchNorm(nn.Module):
    """Batch normalization over all axes but the last, as in PyTorch; padded rows are ignored.

    Training normalizes with the biased variance of the batch and updates the running variance with
    the unbiased one. A batch without real rows leaves the running statistics unchanged; a batch
    with a single value per channel leaves the running variance unchanged.
    """

    momentum: float = MOMENTUM

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """x [B, ..., C], mask [B], 1 for real rows -> [B, ..., C]."""
        width = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, width, x.dtype)
        bias = self.param("bias", nn.initializers.zeros, width, x.dtype)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, width, x.dtype)
        running_var = self.variable("batch_stats", "var", jnp.ones, width, x.dtype)
        if not train:
            return _normalize(x, running_mean.value, running_var.value, scale, bias)
        mean, var, n = _moments(x, jnp.ones(len(x), x.dtype) if mask is None else mask)
        unbiased = var * n / jnp.maximum(n - 1, 1)
        running_mean.value = self._update(running_mean.value, mean, n > 0)
        running_var.value = self._update(running_var.value, unbiased, n > 1)
        return _normalize(x, mean, var, scale, bias)

    def _update(self, running, batch, valid):
        momentum = self.momentum
        return jnp.where(valid, momentum * running + (1 - momentum) * batch, running)


def _moments(x: Array, mask: Array) -> tuple[Array, Array, Array]:
    """Mean [C], biased variance [C] and number of values [] in the real rows of x [B, ..., C]."""
    axes = tuple(range(x.ndim - 1))
    real = mask.reshape(-1, *(1,) * (x.ndim - 1))
    n = mask.sum() * math.prod(x.shape[1:-1])
    mean = (real * x).sum(axes, keepdims=True) / jnp.maximum(n, 1)
    var = (real * (x - mean) ** 2).sum(axes) / jnp.maximum(n, 1)
    return mean.reshape(-1), var, n


def _normalize(x: Array, mean: Array, var: Array, scale: Array, bias: Array) -> Array:
    """Normalizes x [B, ..., C] with statistics and parameters [C] of its last axis."""
    shape = (1,) * (x.ndim - 1) + mean.shape
    factor = scale * lax.rsqrt(var + EPSILON)
    return (x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
