"""Classifiers: a perceptron, and the small convolutional nets of published experiments.

The last layer of each is called `head`; everything before it is the body. A call returns the logits
[B, K] and the features [B, D], which are the input of the head. Feature maps are flattened row by
row with channels last; PyTorch flattens channels first, so the rows of its dense weights must be
permuted to use them here.

The implementation of convolutions is a setting of the run, not of a net: `net.clone(kernels=...)`.
"""

from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.errors import BadInput
from fedjax_lab.models import layers
from fedjax_lab.models.kernels import CPU, Kernels
from fedjax_lab.ranges import Positive, Within, checked
from fedjax_lab.types import Array


class MLP(nn.Module):
    """Dense layers with ReLU on flattened inputs."""

    num_classes: int
    widths: tuple[int, ...] = (64,)
    norm: bool = False  # BatchNorm before each ReLU

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, ...], mask [B], 1 for real rows -> logits [B, K], features [B, D]."""
        z = x.reshape(x.shape[0], -1)
        for width in self.widths:
            z = layers.dense(z, width)
            if self.norm:
                z = layers.BatchNorm()(z, train, mask)
            z = nn.relu(z)
        return layers.dense(z, self.num_classes, name="head"), z


class ConvNet(nn.Module):
    """Convolutions with ReLU, some followed by 2x2 max-pooling, then dense layers with ReLU."""

    num_classes: int
    channels: tuple[int, ...]  # of each convolution
    pooled: tuple[bool, ...]  # whether max-pooling follows each convolution
    widths: tuple[int, ...]  # of the dense layers before the head
    kernel: int = 5
    padding: str = "VALID"  # or "SAME"
    norm: bool = False  # BatchNorm after each convolution
    dense_norm: bool = False  # BatchNorm after each dense layer but the head
    map_dropout: float = 0.0  # of the last convolution's output
    dense_dropout: float = 0.0  # after each dense layer
    branches: int = 1  # parallel bodies with their own weights, whose features are concatenated
    kernels: Kernels = CPU

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, H, W, C], mask [B], 1 for real rows -> logits [B, K], features [B, D]."""
        layers.check_images(self.name or "ConvNet", x.shape[1:], self._smallest())
        z = jnp.concatenate([self._branch(x, train, mask) for _ in range(self.branches)], axis=-1)
        return layers.dense(z, self.num_classes, name="head"), z

    def _branch(self, x: Array, train: bool, mask: Array | None) -> Array:
        for channels, pooled in zip(self.channels, self.pooled, strict=True):
            pool = 2 if pooled else 1
            if self.norm:
                x = layers.conv(
                    x, channels, self.kernel, padding=self.padding, kernels=self.kernels
                )
                x = nn.relu(layers.BatchNorm()(x, train, mask))
                x = self.kernels.max_pool(x, pool) if pooled else x
            else:
                x = layers.Conv(
                    channels, self.kernel, pool=pool, padding=self.padding, kernels=self.kernels
                )(x)
        # Flat before the dropout, whose mask is faster with a long last axis.
        z = x.reshape(x.shape[0], -1)
        z = nn.Dropout(self.map_dropout)(z, deterministic=not train)
        for width in self.widths:
            z = layers.dense(z, width)
            if self.dense_norm:
                z = layers.BatchNorm()(z, train, mask)
            z = nn.relu(z)
            z = nn.Dropout(self.dense_dropout)(z, deterministic=not train)
        return z

    def _smallest(self) -> int:
        """The height and width of the smallest valid image."""
        size = 1
        for pooled in reversed(self.pooled):
            size = 2 * size if pooled else size
            size += self.kernel - 1 if self.padding == "VALID" else 0
        return size


@checked("model")
def mlp(
    num_classes: int,
    *,
    width: Positive[int] = 64,
    depth: Annotated[int, Within(0, layers.MOST_LAYERS)] = 1,
    norm: bool = False,
) -> MLP:
    """A perceptron with ReLU on flattened inputs; with depth 0, logistic regression.

    width: the width of each hidden layer.
    depth: the number of hidden layers.
    norm: BatchNorm before each ReLU.
    """
    if width < 1 or depth < 0:
        raise BadInput(
            f"config.model.width must be at least 1 and config.model.depth at least 0, got {width}"
            f" and {depth}"
        )
    return MLP(num_classes, (width,) * depth, norm, name="mlp")


def simple_cnn(num_classes: int) -> ConvNet:
    """NIID-Bench's and FedConcat's CNN: 62,006 parameters at 32x32x3, 44,426 at 28x28x1."""
    return ConvNet(num_classes, (6, 16), (True, True), (120, 84), name="simple_cnn")


@checked("model")
def concat_cnn(num_classes: int, *, branches: layers.Layers = 5) -> ConvNet:
    """FedConcat's global model (appendix D.4): the bodies of several simple CNNs and one head.

    309,990 parameters at 32x32x3.

    branches: the number of simple CNNs.
    """
    return ConvNet(
        num_classes, (6, 16), (True, True), (120, 84), branches=branches, name="concat_cnn"
    )


def lenet(num_classes: int) -> ConvNet:
    """FedC2I's CNN (Table 7): 4,336,906 parameters at 64x64x3; FedProto's: 797,962 at 32x32x3."""
    return ConvNet(num_classes, (64, 64), (True, True), (384, 192), name="lenet")


def mcmahan_cnn(num_classes: int) -> ConvNet:
    """FedAvg's CNN (McMahan et al. 2017, arXiv 1602.05629): 1,663,370 parameters at 28x28x1."""
    return ConvNet(num_classes, (32, 64), (True, True), (512,), padding="SAME", name="mcmahan_cnn")


def pfl_cnn(num_classes: int) -> ConvNet:
    """The CNN of pfl-research's CIFAR-10 benchmark: 1,626,442 parameters at 32x32x3."""
    return ConvNet(
        num_classes,
        (32, 64),
        (False, True),
        (128,),
        kernel=3,
        map_dropout=0.25,
        dense_dropout=0.5,
        name="pfl_cnn",
    )


def pfllib_cnn(num_classes: int) -> ConvNet:
    """The CNN of PFLlib's quick start (FedAvgCNN): 582,026 parameters at 28x28x1."""
    return ConvNet(num_classes, (32, 64), (True, True), (512,), name="pfllib_cnn")


@checked("model")
def digit_cnn(num_classes: int, *, width: Positive[int] = 16) -> ConvNet:
    """A small CNN with BatchNorm for digit domains: 47,626 parameters at 28x28x3 and width 16.

    It is not from a paper; FedBN's and FedPick's nets for digits have 14 to 18 million parameters.

    width: channels of the first convolution; the second one has twice as many.
    """
    return ConvNet(
        num_classes, (width, 2 * width), (True, True), (64,), norm=True, name="digit_cnn"
    )


def fedbn_cnn(num_classes: int) -> ConvNet:
    """FedBN's CNN for digits (Li et al. 2021, arXiv 2102.07623): 14,219,210 parameters at 28x28x3.

    FedPick's has 18,151,370 parameters at 32x32x3; its features are the 8,192 inputs of the first
    dense layer.
    """
    return ConvNet(
        num_classes,
        (64, 64, 128),
        (True, True, False),
        (2048, 512),
        padding="SAME",
        norm=True,
        dense_norm=True,
        name="fedbn_cnn",
    )
