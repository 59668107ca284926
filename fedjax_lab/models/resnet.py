"""Residual nets (He et al. 2016, arXiv 1512.03385) with PyTorch's numbers.

Convolutions have no bias, start `kaiming_normal` by fan-out and are padded by half their kernel on
each side, also at stride 2, where "SAME" would pad one side only.
"""

from collections.abc import Callable

import flax.linen as nn

from fedjax_lab.models import conv, layers
from fedjax_lab.types import Array

KAIMING = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut; the stride is the 3x3's ("v1.5")."""

    width: int  # of the 3x3 convolution
    stride: int
    convolution: conv.Convolution

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None) -> Array:
        """x [B, H, W, C], mask [B] -> [B, H / stride, W / stride, 4 width], sizes rounded up."""

        def conv_norm(x, channels, kernel, stride=1):
            return layers.BatchNorm()(
                _conv(x, channels, kernel, stride, self.convolution), train, mask
            )

        y = nn.relu(conv_norm(x, self.width, 1))
        y = nn.relu(conv_norm(y, self.width, 3, self.stride))
        y = conv_norm(y, 4 * self.width, 1)
        if y.shape != x.shape:
            x = conv_norm(x, 4 * self.width, 1, self.stride)
        return nn.relu(x + y)


def cifar_stem(
    x: Array, width: int, train: bool, mask: Array | None, convolution: conv.Convolution
) -> Array:
    """For small images: a 3x3 convolution that keeps their size. [B, H, W, C] -> [..., width]."""
    return nn.relu(layers.BatchNorm()(_conv(x, width, 3, 1, convolution), train, mask))


class ResNet(nn.Module):
    """A stem and stages of residual blocks, each of double width and half size; global average."""

    num_classes: int
    stem: Callable[..., Array]  # (x, width, train, mask, convolution), made inside this module
    block: Callable[..., nn.Module]  # (width, stride, convolution)
    stages: tuple[int, ...]  # blocks in each
    width: int = 64  # of the stem and the first stage
    convolution: conv.Convolution = conv.mapped

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, H, W, C], mask [B], 1 where a row is real -> logits [B, K], features [B, D]."""
        layers.check_images(self.name or "ResNet", x.shape[1:], 1)
        x = self.stem(x, self.width, train, mask, self.convolution)
        for i, blocks in enumerate(self.stages):
            for j in range(blocks):
                stride = 2 if i > 0 and j == 0 else 1
                x = self.block(2**i * self.width, stride, self.convolution)(x, train, mask)
        z = x.mean((1, 2))
        return layers.dense(z, self.num_classes, name="head"), z


def resnet50(num_classes: int) -> ResNet:
    """FedConcat's, with the stem for small images: 23,705,252 parameters at 100 classes."""
    return ResNet(num_classes, cifar_stem, Bottleneck, (3, 4, 6, 3), name="resnet50")


def _conv(x: Array, channels: int, kernel: int, stride: int, convolution) -> Array:
    return layers.conv(
        x,
        channels,
        kernel,
        padding=kernel // 2,
        strides=stride,
        use_bias=False,
        kernel_init=KAIMING,
        convolution=convolution,
    )
