"""Compact convolutional transformers (Hassani et al. 2021, arXiv 2104.05704), as in their code.

Dense weights are initialized from N(0, 0.02^2) with bias 0, and position embeddings from
N(0, 0.2^2). The authors' truncation at +-2 is 100 and 10 standard deviations away, and is omitted.
"""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.models import layers
from fedjax_lab.models.kernels import CPU, Kernels
from fedjax_lab.types import Array

KAIMING = nn.initializers.variance_scaling(2.0, "fan_in", "normal")


class Positions(nn.Module):
    """Adds a learned embedding to each position."""

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """[B, N, D] -> [B, N, D]."""
        init = nn.initializers.normal(0.2)
        return tokens + self.param("embedding", init, tokens.shape[1:], tokens.dtype)


class Attention(nn.Module):
    """Multi-head softmax attention with dropout of its weights; q, k and v have no bias."""

    heads: int
    dropout: float

    @nn.compact
    def __call__(self, tokens: Array, train: bool, visible: Array | None = None) -> Array:
        """[B, N, D] -> [B, N, D].

        visible: [B, 1, N] or [B, N, N], whether a token attends to each token; None: to all.
        """
        b, n, d = tokens.shape
        qkv = dense(tokens, 3 * d, "qkv", use_bias=False)
        q, k, v = jnp.moveaxis(qkv.reshape(b, n, 3, self.heads, d // self.heads), 2, 0)
        scores = jnp.einsum("bnhd,bmhd->bhnm", q, k) * (d // self.heads) ** -0.5
        if visible is not None:
            scores = jnp.where(visible[:, None], scores, -1e9)
        weights = nn.softmax(scores)
        weights = nn.Dropout(self.dropout)(weights, deterministic=not train)
        y = jnp.einsum("bhnm,bmhd->bnhd", weights, v).reshape(b, n, d)
        return dense(y, d, "out")


class Block(nn.Module):
    """s = x + attention(LN(x)), s' = LN(s), s' + MLP(s'): the second norm is in the residual path.

    In training, each example skips each of the two branches with probability `skip` (stochastic
    depth).
    """

    heads: int
    hidden: int  # width of the MLP
    attention_dropout: float
    skip: float

    @nn.compact
    def __call__(self, tokens: Array, train: bool) -> Array:
        """[B, N, D] -> [B, N, D]."""

        def kept(y):
            return nn.Dropout(self.skip, broadcast_dims=(1, 2))(y, deterministic=not train)

        attention = Attention(self.heads, self.attention_dropout)
        s = layer_norm(tokens + kept(attention(layer_norm(tokens), train)))
        y = nn.gelu(dense(s, self.hidden, "mlp_0"), approximate=False)
        return s + kept(dense(y, s.shape[-1], "mlp_1"))


class CCT(nn.Module):
    """A convolution and a max-pool make tokens; then transformer blocks and attention pooling."""

    num_classes: int
    width: int  # D
    blocks: int
    heads: int
    hidden: int  # width of the MLPs
    attention_dropout: float = 0.1
    skip: float = 0.1  # of the last block; it grows linearly from 0 in the first
    kernels: Kernels = CPU

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, H, W, C]; mask [B] is not used -> logits [B, K], features [B, D]."""
        layers.check_images(self.name or "CCT", x.shape[1:], 1)
        x = layers.conv(
            x,
            self.width,
            3,
            padding=1,
            use_bias=False,
            kernel_init=KAIMING,
            kernels=self.kernels,
        )
        x = self.kernels.max_pool(nn.relu(x), 3, 2, padding=1)
        tokens = Positions()(x.reshape(x.shape[0], -1, self.width))
        for i in range(self.blocks):
            skip = self.skip * i / max(self.blocks - 1, 1)
            block = Block(self.heads, self.hidden, self.attention_dropout, skip)
            tokens = block(tokens, train)
        tokens = layer_norm(tokens)
        share = nn.softmax(dense(tokens, 1, "pool"), axis=1)  # [B, N, 1]
        z = (share * tokens).sum(1)
        return dense(z, self.num_classes, "head"), z


def cct7(num_classes: int) -> CCT:
    """CCT-7/3x1: 3,760,139 parameters at 10 classes and 32x32x3; 3,967,027 at 50 and 64x64x3."""
    return CCT(num_classes, width=256, blocks=7, heads=4, hidden=512, name="cct7")


def dense(x: Array, features: int, name: str, use_bias: bool = True) -> Array:
    """A dense layer with weights initialized from N(0, 0.02^2); call it in a compact module."""
    return nn.Dense(
        features, use_bias=use_bias, kernel_init=nn.initializers.normal(0.02), name=name
    )(x)


def layer_norm(x: Array) -> Array:
    """Layer normalization over the last axis; call it in a compact module."""
    return nn.LayerNorm(epsilon=1e-5, use_fast_variance=False)(x)
