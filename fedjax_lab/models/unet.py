"""A small U-Net (Ronneberger et al., MICCAI 2015, arXiv:1505.04597) that classifies pixels.

Two 3x3 convolutions, each with a group norm and ReLU, per resolution; max-pooling halves the
resolution and doubles the channels. On the way up, nearest neighbors double the resolution, and the
output of the same resolution on the way down is concatenated. The paper has no norm and learns the
upsampling.
"""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.errors import BadInput
from fedjax_lab.models import layers
from fedjax_lab.models.kernels import CPU, Kernels
from fedjax_lab.ranges import Positive, checked
from fedjax_lab.types import Array

GROUPS = 4  # of the channels whose mean and variance are normalized together


class UNet(nn.Module):
    """Convolutions at `depth` + 1 resolutions, down and up again; the head reads each pixel."""

    num_classes: int
    width: int  # channels at the full resolution
    depth: int  # number of poolings
    kernels: Kernels = CPU

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, H, W, C]; mask [B] is not used -> logits [B, H, W, K], features [B, H, W, D].

        Raises BadInput unless 2^depth divides height and width.
        """
        name = self.name or "UNet"
        layers.check_images(name, x.shape[1:], 2**self.depth)
        if any(side % 2**self.depth for side in x.shape[1:3]):
            raise BadInput(
                f"{name} needs images whose sides are multiples of {2**self.depth}, not"
                f" {x.shape[1]}x{x.shape[2]}; lower config.model.depth"
            )
        before = []
        for level in range(self.depth):
            x = self._twice(x, level, "down")
            before.append(x)
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = self._twice(x, self.depth, "middle")
        for level in reversed(range(self.depth)):
            x = x.repeat(2, 1).repeat(2, 2)
            x = self._twice(jnp.concatenate([before[level], x], -1), level, "up")
        return layers.dense(x, self.num_classes, name="head"), x

    def _twice(self, x, level, way):
        for i in range(2):
            at, size = f"{way}_{level}_{i}", self.width * 2**level
            x = layers.conv(x, size, 3, padding="SAME", kernels=self.kernels, name=at)
            x = nn.relu(nn.GroupNorm(GROUPS, epsilon=layers.EPSILON, name=f"norm_{at}")(x))
        return x


@checked("model")
def unet(num_classes: int, *, width: Positive[int] = 16, depth: layers.Layers = 2) -> UNet:
    """A small U-Net, for config.task.name=segmentation.

    width: the number of channels at the full resolution, a multiple of 4.
    depth: how many times the resolution is halved.
    """
    if width % GROUPS:
        raise BadInput(f"config.model.width={width} must be a multiple of {GROUPS}")
    return UNet(num_classes, width, depth, name="unet")
