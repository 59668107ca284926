"""A small transformer encoder of texts: `vit`'s blocks over words, in which padding is masked.

Padding comes first, so that the learned positions count from a text's last word. First weights are
those of `vit`; there is no dropout. The head reads the mean of the words' tokens.
"""

import flax.linen as nn

from fedjax_lab.errors import BadInput
from fedjax_lab.models import tokens
from fedjax_lab.models.cct import Positions, dense, layer_norm
from fedjax_lab.models.vit import Block
from fedjax_lab.types import Array


class Transformer(nn.Module):
    """An embedding of words with positions, transformer blocks, and the mean of the tokens."""

    num_classes: int
    width: int = 64  # D
    depth: int = 2  # blocks
    heads: int = 4
    vocabulary: int = 0

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, T] token ids; mask [B] is not needed -> logits [B, K], features [B, D]."""
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
    """By default 64 wide, with 2 blocks of 4 heads.

    width: the size of a token's vector; the blocks' inner layers are four times as wide.
    depth: blocks.
    """
    tokens.check_sizes(width=width, depth=depth, heads=heads)
    if width % heads:
        raise BadInput(f"config.model.heads={heads} does not divide config.model.width={width}")
    return Transformer(num_classes, width, depth, heads, vocabulary, name="transformer")
