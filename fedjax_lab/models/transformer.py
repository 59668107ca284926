"""Small transformers for texts: the blocks of `vit` over words, with masked padding.

In a text to classify, padding comes first, so that the learned positions are relative to the last
word, and the head reads the mean of the words' tokens. A causal transformer predicts at each word,
from it and the words before it. Weights are initialized as in `vit`; there is no dropout.
"""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.models import layers, token_ids
from fedjax_lab.models.cct import Positions, dense, layer_norm
from fedjax_lab.models.vit import Block
from fedjax_lab.ranges import NotNegative, Positive, checked
from fedjax_lab.types import Array


class Transformer(nn.Module):
    """Word and position embeddings, transformer blocks, and the mean of the tokens or all."""

    num_classes: int
    width: int = 64  # D
    depth: int = 2  # number of blocks
    heads: int = 4
    vocabulary: int = 0
    causal: bool = False

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, T] token ids; mask [B] is not used -> logits [B, K], features [B, D].

        If `causal`, logits [B, T, K] and features [B, T, D].
        """
        ids = token_ids.ids_of(self.name or "Transformer", x)
        real = ids != token_ids.PADDING
        size = self.vocabulary or self.num_classes
        first = nn.initializers.normal(0.2)
        words = nn.Embed(size, self.width, embedding_init=first, name="words")(ids)
        blocks = nn.scan(
            Block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=self.depth,
        )
        visible = real[:, None]
        if self.causal:
            visible = visible & jnp.tri(x.shape[1], dtype=bool)
        z, _ = blocks(self.heads, name="blocks")(Positions()(words), visible)
        z = layer_norm(z)
        if not self.causal:
            z = token_ids.mean_of_real(z, real)
        return dense(z, self.num_classes, "head"), z


@checked("model")
def transformer(
    num_classes: int,
    *,
    width: Positive[int] = 64,
    depth: layers.Layers = 2,
    heads: Positive[int] = 4,
    vocabulary: NotNegative[int] = 0,
) -> Transformer:
    """A small transformer encoder for the classification of texts.

    width: the size of a token; the hidden layers of the MLPs are four times as wide.
    depth: the number of blocks.
    heads: the number of attention heads in each block.
    vocabulary: the number of token ids; 0: as many as the data need.
    """
    layers.check_heads(width, heads)
    return Transformer(num_classes, width, depth, heads, vocabulary, name="transformer")


@checked("model")
def causal_transformer(
    num_classes: int,
    *,
    width: Positive[int] = 64,
    depth: layers.Layers = 2,
    heads: Positive[int] = 4,
    vocabulary: NotNegative[int] = 0,
) -> Transformer:
    """A small causal transformer, for config.task.name=tokens; settings as in `transformer`."""
    layers.check_heads(width, heads)
    name = "causal_transformer"
    return Transformer(num_classes, width, depth, heads, vocabulary, causal=True, name=name)
