"""Vision transformers (Dosovitskiy et al. 2021, arXiv 2010.11929) of any size.

The head reads the mean of the tokens instead of a class token (Beyer et al. 2022, arXiv
2205.01580). Weights are initialized as in `cct`. There is no dropout.

The blocks are a loop over stacked weights (`params/blocks`, with a leading axis [depth]), so that
the compile time does not grow with the depth. To methods that select layers, such as FedPer, a
layer of the loop is one layer that includes its copies in all blocks.
"""

import flax.linen as nn

from fedjax_lab.errors import BadInput
from fedjax_lab.models import layers
from fedjax_lab.models.cct import Attention, Positions, dense, layer_norm
from fedjax_lab.ranges import Positive, checked
from fedjax_lab.types import Array


class Block(nn.Module):
    """s = x + attention(LN(x)), s + MLP(LN(s)); the MLP is four times as wide as the tokens."""

    heads: int

    @nn.compact
    def __call__(self, tokens: Array, visible: Array | None = None) -> tuple[Array, None]:
        """[B, N, D] -> [B, N, D], as the step of a loop; visible: see `Attention`."""
        width = tokens.shape[-1]
        s = tokens + Attention(self.heads, dropout=0.0)(layer_norm(tokens), False, visible)
        y = nn.gelu(dense(layer_norm(s), 4 * width, "mlp_0"), approximate=False)
        return s + dense(y, width, "mlp_1"), None


class ViT(nn.Module):
    """The patches of an image are tokens; then transformer blocks and the mean of the tokens."""

    num_classes: int
    width: int  # D
    depth: int  # number of blocks
    heads: int
    patch: int
    remat: bool = False  # recompute the activations of blocks in the backward pass

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, H, W, C]; mask [B] is not used -> logits [B, K], features [B, D].

        Raises BadInput unless the examples are images whose size is a multiple of the patch size.
        """
        tokens = dense(self._patches(x), self.width, "patches")
        block = nn.remat(Block, prevent_cse=False) if self.remat else Block
        blocks = nn.scan(
            block, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth
        )
        tokens, _ = blocks(self.heads, name="blocks")(Positions()(tokens), None)
        z = layer_norm(tokens).mean(1)
        return dense(z, self.num_classes, "head"), z

    def _patches(self, x):
        """[B, H, W, C] -> [B, N, patch * patch * C], row by row."""
        layers.check_images(self.name or "ViT", x.shape[1:], self.patch)
        b, height, width, channels = x.shape
        p = self.patch
        if height % p or width % p:
            raise BadInput(
                f"config.model.patch={p} does not divide images of {height}x{width}; use a divisor"
            )
        x = x.reshape(b, height // p, p, width // p, p, channels).swapaxes(2, 3)
        return x.reshape(b, -1, p * p * channels)


@checked("model")
def vit(
    num_classes: int,
    *,
    width: Positive[int] = 192,
    depth: layers.Layers = 12,
    heads: Positive[int] = 3,
    patch: Positive[int] = 4,
    remat: bool = False,
) -> ViT:
    """A vision transformer; by default ViT-Ti with patches of 4x4 pixels.

    5,355,466 parameters at 10 classes and 32x32x3.

    width: the size of a token; the hidden layers of the MLPs are four times as wide.
    depth: the number of blocks.
    heads: the number of attention heads in each block.
    patch: the side of a patch in pixels.
    remat: save memory in training. Only the values between blocks are kept for the backward pass,
      which computes each block again: about a third more arithmetic.
    """
    layers.check_heads(width, heads)
    return ViT(num_classes, width, depth, heads, patch, remat, name="vit")
