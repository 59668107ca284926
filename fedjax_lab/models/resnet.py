"""Residual nets (He et al. 2016, arXiv 1512.03385), initialized and padded as in PyTorch.

Convolutions have no bias, are initialized by `kaiming_normal` (fan-out), and are padded by half
their kernel size on each side, also at stride 2, where "SAME" would pad only one side.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import flax.linen as nn

from fedjax_lab.errors import BadInput
from fedjax_lab.models import layers
from fedjax_lab.models.kernels import CPU, Kernels
from fedjax_lab.ranges import checked
from fedjax_lab.types import Array

KAIMING = nn.initializers.variance_scaling(2.0, "fan_out", "normal")

Norm = Callable[[Array, bool, Array | None], Array]  # (x, train, mask), called in a module


def batch_norm(x: Array, train: bool, mask: Array | None) -> Array:
    """BatchNorm with the statistics of the batch's real rows. [B, H, W, C] -> the same."""
    return layers.BatchNorm()(x, train, mask)


def group_norm(x: Array, train: bool, mask: Array | None) -> Array:
    """GroupNorm with two groups of channels: the statistics are those of each image."""
    return nn.GroupNorm(2, epsilon=layers.EPSILON, use_fast_variance=False)(x)


def conv_norm(
    kernels: Kernels,
    norm: Norm,
    train: bool,
    mask: Array | None,
    x: Array,
    channels: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
) -> Array:
    """A convolution and a normalization; call it in a compact module.

    [B, H, W, C] -> [B, H / stride, W / stride, channels], sizes rounded up.
    """
    y = layers.conv(
        x,
        channels,
        kernel,
        padding=kernel // 2,
        strides=stride,
        groups=groups,
        use_bias=False,
        kernel_init=KAIMING,
        kernels=kernels,
    )
    return norm(y, train, mask)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; the first convolution has the stride."""

    width: int
    stride: int
    kernels: Kernels
    norm: Norm = batch_norm
    num_convolutions = 2  # without that of the shortcut

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None) -> Array:
        """x [B, H, W, C], mask [B] -> [B, H / stride, W / stride, width], sizes rounded up."""
        layer = partial(conv_norm, self.kernels, self.norm, train, mask)
        y = nn.relu(layer(x, self.width, 3, self.stride))
        y = layer(y, self.width, 3)
        if y.shape != x.shape:
            x = layer(x, self.width, 1, self.stride)
        return nn.relu(x + y)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the 3x3 one has the stride ("v1.5")."""

    width: int  # of the 3x3 convolution
    stride: int
    kernels: Kernels
    norm: Norm = batch_norm
    num_convolutions = 3  # without that of the shortcut

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None) -> Array:
        """x [B, H, W, C], mask [B] -> [B, H / stride, W / stride, 4 width], sizes rounded up."""
        layer = partial(conv_norm, self.kernels, self.norm, train, mask)
        y = nn.relu(layer(x, self.width, 1))
        y = nn.relu(layer(y, self.width, 3, self.stride))
        y = layer(y, 4 * self.width, 1)
        if y.shape != x.shape:
            x = layer(x, 4 * self.width, 1, self.stride)
        return nn.relu(x + y)


def cifar_stem(x: Array, width: int, layer: Callable[..., Array], kernels: Kernels) -> Array:
    """A 3x3 convolution, for small images: [B, H, W, C] -> [B, H, W, width]."""
    return nn.relu(layer(x, width, 3))


def imagenet_stem(x: Array, width: int, layer: Callable[..., Array], kernels: Kernels) -> Array:
    """A 7x7 convolution and a 3x3 max-pool: [B, H, W, C] -> [B, H / 4, W / 4, width]."""
    return kernels.max_pool(nn.relu(layer(x, width, 7, 2)), 3, 2, padding=1)


class ResNet(nn.Module):
    """A stem, stages of residual blocks (each of half size and double width), global averaging."""

    num_classes: int
    stem: Callable[..., Array]  # (x, width, layer, kernels), called in this module
    block: type[BasicBlock] | type[Bottleneck]
    stages: tuple[int, ...]  # number of blocks in each stage
    width: int = 64  # of the stem and the first stage
    kernels: Kernels = CPU
    norm: Norm = batch_norm
    pretrained: str = ""  # file with the initial weights; see models/pretrained.py

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, H, W, C], mask [B], 1 for real rows -> logits [B, K], features [B, D]."""
        layers.check_images(self.name or "ResNet", x.shape[1:], 1)
        layer = partial(conv_norm, self.kernels, self.norm, train, mask)
        x = self.stem(x, self.width, layer, self.kernels)
        for i, blocks in enumerate(self.stages):
            for j in range(blocks):
                stride = 2 if i > 0 and j == 0 else 1
                block = self.block(2**i * self.width, stride, self.kernels, self.norm)
                x = block(x, train, mask)
        z = x.mean((1, 2))
        return layers.dense(z, self.num_classes, name="head"), z

    def published_names(self) -> tuple[dict[str, str], ...]:
        """The names of the layers in torchvision's files, by path; timm's are the same."""
        names = {"Conv_0": "conv1", "BatchNorm_0": "bn1", "head": "fc"}
        last = self.block.num_convolutions
        places = [f"layer{i + 1}.{j}" for i, n in enumerate(self.stages) for j in range(n)]
        for number, there in enumerate(places):
            here = f"{self.block.__name__}_{number}"
            for k in range(last):
                names |= {f"{here}/Conv_{k}": f"{there}.conv{k + 1}"}
                names |= {f"{here}/BatchNorm_{k}": f"{there}.bn{k + 1}"}
            names |= {f"{here}/Conv_{last}": f"{there}.downsample.0"}
            names |= {f"{here}/BatchNorm_{last}": f"{there}.downsample.1"}
        return (names,)


@checked("model")
def resnet18(
    num_classes: int,
    *,
    stem: Literal["cifar", "imagenet"] = "cifar",
    norm: Literal["batch", "group"] = "batch",
    pretrained: str = "",
) -> ResNet:
    """ResNet-18: 11,173,962 parameters at 10 classes; 11,181,642 with ImageNet's stem.

    stem: `cifar`, for small images, or `imagenet`.
    norm: `batch`, or `group`: GroupNorm with two groups everywhere, as in FedDyn's code.
    pretrained: a torchvision or timm `.safetensors` file with the initial weights; a head with
      another number of classes is not read.

    Raises BadInput if pretrained weights cannot fit this architecture.
    """
    stems = {"cifar": cifar_stem, "imagenet": imagenet_stem}
    norms = {"batch": batch_norm, "group": group_norm}
    if pretrained and (stem, norm) != ("imagenet", "batch"):
        raise BadInput("config.model.pretrained needs config.model.stem=imagenet and norm=batch")
    return ResNet(
        num_classes,
        stems[stem],
        BasicBlock,
        (2, 2, 2, 2),
        norm=norms[norm],
        pretrained=pretrained,
        name="resnet18",
    )


def resnet50(num_classes: int) -> ResNet:
    """FedConcat's ResNet-50, with the stem for small images: 23,705,252 parameters, 100 classes."""
    return ResNet(num_classes, cifar_stem, Bottleneck, (3, 4, 6, 3), name="resnet50")
