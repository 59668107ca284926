"""Client2Vec's index network, DSA-IGN (section 3 and appendix D.2).

[Z, U] = three transformer layers on [D, D], read as tokens of width 32;  D~ = [Z, U] W_P

Tokens p and p + n/2 have the same content, so that without position embeddings Z = U for any
weights. The paper does not mention them; here a learned one is added to each token.
"""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.errors import BadInput
from fedjax_lab.models.layers import dense, torch_uniform
from fedjax_lab.types import Array

WIDTH, LAYERS, HEADS, HIDDEN = 32, 3, 8, 2048
DROPOUT, EPSILON = 0.1, 1e-5  # as in PyTorch's encoder layer, which also normalizes last


class Network(nn.Module):
    """Decomposition and projection of embeddings."""

    positions: bool = True
    decoder: str = "linear"  # or "mlp": two layers (Fig. 9)

    @nn.compact
    def __call__(self, D: Array, train: bool = False) -> tuple[Array, Array, Array]:
        """D [B, E] -> Z, U and the reconstruction, [B, E] each.

        Raises BadInput unless E is a multiple of 32.
        """
        size = D.shape[-1]
        if size % WIDTH:
            raise BadInput(f"client2vec needs a multiple of {WIDTH} as embedding size, got {size}")
        tokens = jnp.concatenate([D, D], -1).reshape(len(D), -1, WIDTH)  # [B, n, 32]
        if self.positions:
            init = nn.initializers.normal(0.02)
            tokens = tokens + self.param("positions", init, tokens.shape[1:], tokens.dtype)
        for _ in range(LAYERS):
            tokens = EncoderLayer()(tokens, train)
        both = tokens.reshape(len(D), 2 * size)
        hidden = nn.relu(dense(both, size, name="hidden")) if self.decoder == "mlp" else both
        return both[:, :size], both[:, size:], dense(hidden, size, name="projection")


class EncoderLayer(nn.Module):
    """Attention over the tokens of one example, then two dense layers on each token."""

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """x [B, n, 32] -> [B, n, 32]."""

        def dropout(y):
            return nn.Dropout(DROPOUT, deterministic=not train)(y)

        attended = nn.MultiHeadDotProductAttention(
            HEADS,
            broadcast_dropout=False,
            dropout_rate=DROPOUT,
            deterministic=not train,
            kernel_init=torch_uniform((WIDTH + 3 * WIDTH) / 6),  # Xavier's, for q, k, v as one
            out_kernel_init=torch_uniform(WIDTH),
        )(x)
        x = nn.LayerNorm(EPSILON)(x + dropout(attended))
        y = dropout(nn.relu(dense(x, HIDDEN)))
        return nn.LayerNorm(EPSILON)(x + dropout(dense(y, WIDTH)))
