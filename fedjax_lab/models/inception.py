"""hFedF's client model (Bartholet et al. 2024, arXiv 2402.06974, Table 7): naive Inception modules.

The table lists only numbers of channels. 176 outputs of 64 inputs and 288 of 176 are those of the
naive module of GoogLeNet (Szegedy et al. 2015, arXiv 1409.4842, Fig. 2a), whose pooling branch
keeps the channels of its input. Average pooling or the identity in place of the maximum would give
the same numbers of channels.
"""

from collections.abc import Callable
from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.errors import BadInput
from fedjax_lab.models import layers
from fedjax_lab.models.kernels import CPU, Kernels
from fedjax_lab.ranges import OneOf, Within, checked
from fedjax_lab.types import Array

POOLS: dict[str, Callable[[Kernels, Array], Array]] = {
    "max": lambda kernels, x: kernels.max_pool(x, 3, 1, 1),
    "avg": lambda kernels, x: layers.avg_pool(x, window=3, stride=1, padding=1),
    "identity": lambda kernels, x: x,
}


class Inception(nn.Module):
    """Parallel 1x1, 3x3 and 5x5 convolutions and a 3x3 pooling, concatenated, then ReLU."""

    widths: tuple[int, int, int]  # channels of the 1x1, the 3x3 and the 5x5
    pool: str  # in POOLS
    kernels: Kernels

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """x [B, H, W, C] -> [B, H, W, sum(widths) + C], the pooled channels last."""
        branches = [
            layers.conv(x, channels, kernel, padding=kernel // 2, kernels=self.kernels)
            for channels, kernel in zip(self.widths, (1, 3, 5), strict=True)
        ]
        branches.append(POOLS[self.pool](self.kernels, x))
        return nn.relu(jnp.concatenate(branches, axis=-1))


class InceptionNet(nn.Module):
    """Three convolutions, two Inception modules, average pooling to 3x3, two dense layers.

    As in the table, there is no activation between the 1x1 convolution and the following 3x3 one,
    nor between the dense layers, so that these pairs are linear.
    """

    num_classes: int
    width: int  # channels of the first convolution; all others are proportional
    dropout: float  # before the dense layers
    pool: str = "max"  # of the Inception modules
    kernels: Kernels = CPU

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, H, W, C]; mask [B] is not used -> logits [B, K], features [B, 8 width]."""
        layers.check_images(self.name or "InceptionNet", x.shape[1:], 4)
        w, kernels = self.width, self.kernels
        x = layers.conv(x, w, 3, padding=1, kernels=kernels)
        x = nn.relu(kernels.max_pool(x, 2))
        x = layers.conv(x, w, 1, kernels=kernels)
        x = layers.conv(x, 2 * w, 3, padding=1, kernels=kernels)
        x = nn.relu(kernels.max_pool(x, 2))
        for _ in range(2):
            x = Inception((w, 2 * w, w // 2), self.pool, kernels)(x)
        z = layers.adaptive_avg_pool(x, 3).reshape(x.shape[0], -1)
        z = nn.Dropout(self.dropout)(z, deterministic=not train)
        z = layers.dense(z, 8 * w)
        return layers.dense(z, self.num_classes, name="head"), z


@checked("model")
def hfedf_cnn(
    num_classes: int,
    *,
    width: Annotated[int, Within(2)] = 32,
    inception_pool: Annotated[str, OneOf(POOLS)] = "max",
) -> InceptionNet:
    """hFedF's client model: 928,199 parameters at 7 classes, 32x32x3 and width 32.

    width: channels of the first convolution; the number of parameters grows with its square.
    inception_pool: the branch without weights in Inception modules: max, avg or identity.
    """
    if width % 2:
        raise BadInput(f"config.model.width must be even, not {width}")
    return InceptionNet(num_classes, width, dropout=0.2, pool=inception_pool, name="hfedf_cnn")
