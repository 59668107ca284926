"""AlexNet (Krizhevsky et al. 2012) as in torchvision, with BatchNorm before each ReLU."""

import flax.linen as nn

from fedjax_lab.models import layers
from fedjax_lab.models.kernels import CPU, Kernels
from fedjax_lab.types import Array

CONVOLUTIONS = (  # kernel, stride, padding, whether a max-pool follows
    (11, 4, 2, True),
    (5, 1, 2, True),
    (3, 1, 1, False),
    (3, 1, 1, False),
    (3, 1, 1, True),
)


class AlexNet(nn.Module):
    """Five convolutions, three of them with a 3x3 max-pool at stride 2, then dense layers."""

    num_classes: int
    channels: tuple[int, ...] = (64, 192, 384, 256, 256)  # of each convolution
    widths: tuple[int, ...] = (4096, 4096)  # of the dense layers before the head
    kernels: Kernels = CPU

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, H, W, C], mask [B], 1 for real rows -> logits [B, K], features [B, D]."""
        layers.check_images(self.name or "AlexNet", x.shape[1:], 63)  # 63 -> 15 -> 7 -> 3 -> 1
        for channels, settings in zip(self.channels, CONVOLUTIONS, strict=True):
            kernel, stride, padding, pooled = settings
            x = layers.conv(
                x,
                channels,
                kernel,
                padding=padding,
                strides=stride,
                kernels=self.kernels,
            )
            x = nn.relu(layers.BatchNorm()(x, train, mask))
            if pooled:
                x = self.kernels.max_pool(x, 3, 2)
        z = layers.adaptive_avg_pool(x, 6).reshape(x.shape[0], -1)
        for width in self.widths:
            z = nn.relu(layers.BatchNorm()(layers.dense(z, width), train, mask))
        return layers.dense(z, self.num_classes, name="head"), z


def alexnet_bn(num_classes: int) -> AlexNet:
    """FedBN's and FedPick's model for Office-Caltech-10 and DomainNet, without dropout.

    57,063,498 parameters at 10 classes and 256x256x3. The features are the 4,096 inputs of the
    head, as in FedPick.
    """
    return AlexNet(num_classes, name="alexnet_bn")
