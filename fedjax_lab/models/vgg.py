"""VGG nets (Simonyan and Zisserman 2015): 3x3 convolutions with bias and ReLU, no normalization."""

import flax.linen as nn

from fedjax_lab.models import layers
from fedjax_lab.models.kernels import CPU, Kernels
from fedjax_lab.types import Array


class VGG(nn.Module):
    """Stages of convolutions, each followed by 2x2 max-pooling, then dense layers with ReLU."""

    num_classes: int
    stages: tuple[tuple[int, ...], ...]  # channels of each convolution
    map_dropout: tuple[float, ...]  # of whole feature maps, after each stage
    widths: tuple[int, ...]  # of the dense layers before the head
    dense_dropout: float  # before the first and after the last of these layers
    kernels: Kernels = CPU

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, H, W, C]; mask [B] is not used -> logits [B, K], features [B, D]."""
        layers.check_images(self.name or "VGG", x.shape[1:], 2 ** len(self.stages))
        for stage, rate in zip(self.stages, self.map_dropout, strict=True):
            for i, channels in enumerate(stage, 1):
                pool = 2 if i == len(stage) else 1
                x = layers.Conv(channels, 3, padding=1, pool=pool, kernels=self.kernels)(x)
            x = nn.Dropout(rate, broadcast_dims=(1, 2))(x, deterministic=not train)
        z = x.reshape(x.shape[0], -1)
        z = nn.Dropout(self.dense_dropout)(z, deterministic=not train)
        for width in self.widths:
            z = nn.relu(layers.dense(z, width))
        z = nn.Dropout(self.dense_dropout)(z, deterministic=not train)
        return layers.dense(z, self.num_classes, name="head"), z


def vgg9(num_classes: int) -> VGG:
    """NIID-Bench's and FedConcat's VGG-9: 3,491,530 parameters at 10 classes and 32x32x3."""
    return VGG(
        num_classes,
        stages=((32, 64), (128, 128), (256, 256)),
        map_dropout=(0.0, 0.05, 0.0),
        widths=(512, 512),
        dense_dropout=0.1,
        name="vgg9",
    )
