"""MobileNetV2 (Sandler et al. 2018, arXiv 1801.04381) as in torchvision.

Convolutions have no bias, are initialized by `kaiming_normal` (fan-out), and are padded by half
their kernel size on each side. The head is initialized from N(0, 0.01^2) with bias 0.
"""

from functools import partial

import flax.linen as nn

from fedjax_lab.models import layers
from fedjax_lab.models.kernels import CPU, Kernels
from fedjax_lab.models.resnet import batch_norm, conv_norm
from fedjax_lab.types import Array

STAGES = (  # expansion, channels, blocks, stride of the first block (Table 2)
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """1x1 expansion, 3x3 depthwise and 1x1 projection; a shortcut if the shape does not change."""

    channels: int
    expansion: int  # factor of the channels; 1: without the first 1x1 convolution
    stride: int  # of the 3x3 convolution
    kernels: Kernels

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None) -> Array:
        """x [B, H, W, C], mask [B] -> [B, H / stride, W / stride, channels], sizes rounded up."""
        layer = partial(conv_norm, self.kernels, batch_norm, train, mask)
        wide = self.expansion * x.shape[-1]
        y = x
        if self.expansion > 1:
            y = nn.relu6(layer(y, wide, 1))
        y = nn.relu6(layer(y, wide, 3, self.stride, groups=wide))
        y = layer(y, self.channels, 1)
        same = self.stride == 1 and self.channels == x.shape[-1]
        return x + y if same else y


class MobileNetV2(nn.Module):
    """A 3x3 convolution at stride 2, inverted residuals, a 1x1 convolution, global averaging."""

    num_classes: int
    stem: int = 32  # channels of the first convolution
    stages: tuple[tuple[int, int, int, int], ...] = STAGES
    width: int = 1280  # of the features
    dropout: float = 0.2  # of the features, before the head
    kernels: Kernels = CPU
    pretrained: str = ""  # file with the initial weights; see models/pretrained.py

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, H, W, C], mask [B], 1 for real rows -> logits [B, K], features [B, D]."""
        layers.check_images(self.name or "MobileNetV2", x.shape[1:], 1)
        layer = partial(conv_norm, self.kernels, batch_norm, train, mask)
        x = nn.relu6(layer(x, self.stem, 3, 2))
        for expansion, channels, blocks, first in self.stages:
            for j in range(blocks):
                stride = first if j == 0 else 1
                block = InvertedResidual(channels, expansion, stride, self.kernels)
                x = block(x, train, mask)
        z = nn.relu6(layer(x, self.width, 1)).mean((1, 2))
        z = nn.Dropout(self.dropout)(z, deterministic=not train)
        head = nn.Dense(self.num_classes, kernel_init=nn.initializers.normal(0.01), name="head")
        return head(z), z

    def published_names(self) -> tuple[dict[str, str], ...]:
        """The names of the layers in torchvision's files and in timm's, by path."""
        torchvision, timm = {"head": "classifier.1"}, {"head": "classifier"}
        blocks = [(i, j, stage[0]) for i, stage in enumerate(self.stages) for j in range(stage[2])]

        def note(names, here, number, convolution, norm):
            names |= {f"{here}Conv_{number}": convolution, f"{here}BatchNorm_{number}": norm}

        for number, place in enumerate((0, len(blocks) + 1)):
            note(torchvision, "", number, f"features.{place}.0", f"features.{place}.1")
        note(timm, "", 0, "conv_stem", "bn1")
        note(timm, "", 1, "conv_head", "bn2")
        for block, (i, j, expansion) in enumerate(blocks):
            kinds = ("conv_pw", "conv_dw", "conv_pwl") if expansion > 1 else ("conv_dw", "conv_pw")
            here, last = f"InvertedResidual_{block}/", len(kinds) - 1
            for k, kind in enumerate(kinds):
                there = f"features.{block + 1}.conv.{k}"
                after = f"features.{block + 1}.conv.{k + 1}"  # the last norm is not nested
                pair = (f"{there}.0", f"{there}.1") if k < last else (there, after)
                note(torchvision, here, k, *pair)
                note(timm, here, k, f"blocks.{i}.{j}.{kind}", f"blocks.{i}.{j}.bn{k + 1}")
        return torchvision, timm


def mobilenet_v2(num_classes: int, *, pretrained: str = "") -> MobileNetV2:
    """MobileNetV2 at width 1.0: 2,236,682 parameters at 10 classes, 3,504,872 at 1000.

    pretrained: a torchvision or timm `.safetensors` file with the initial weights; a head with
      another number of classes is not read.
    """
    return MobileNetV2(num_classes, pretrained=pretrained, name="mobilenet_v2")
