"""A small transformer encoder for texts: the blocks of `vit` over words, with masked padding.

Padding comes first, so that the learned positions are relative to a text's last word. Weights are
initialized as in `vit`; there is no dropout. The head reads the mean of the words' tokens.
"""

import flax.linen as nn

from fedjax_lab.errors import BadInput
from fedjax_lab.models import tokens
from fedjax_lab.models.cct import Positions, dense, layer_norm
from fedjax_lab.models.vit import Block
from fedjax_lab.types import Array


class Transformer(nn.Module):
    """Word and position embeddings, transformer blocks, and the mean of the tokens."""

    num_classes: int
    width: int = 64  # D
    depth: int = 2  # number of blocks
    heads: int = 4
    vocabulary: int = 0

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, T] token ids; mask [B] is not used -> logits [B, K], features [B, D]."""
        ids = tokens.ids_of(self.name or "Transformer", x)
        real = ids != tokens.PADDING
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
        z, _ = blocks(self.heads, name="blocks")(Positions()(words), real)
        z = tokens.mean_of_real(layer_norm(z), real)
        return dense(z, self.num_classes, "head"), z


def transformer(
    num_classes: int, *, width: int = 64, depth: int = 2, heads: int = 4, vocabulary: int = 0
) -> Transformer:
    """A small transformer encoder for texts.

    width: the size of a token; the hidden layers of the MLPs are four times as wide.
    depth: the number of blocks.
    heads: the number of attention heads in each block.
    vocabulary: the number of token ids; 0: as many as the data need.
    """
    tokens.check_sizes(width=width, depth=depth, heads=heads)
    if width % heads:
        raise BadInput(f"config.model.heads={heads} does not divide config.model.width={width}")
    return Transformer(num_classes, width, depth, heads, vocabulary, name="transformer")
