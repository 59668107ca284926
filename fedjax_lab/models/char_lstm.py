"""LEAF's net for the next character (Caldas et al. 2018, arXiv 1812.01097), PyTorch's numbers."""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.errors import BadInput
from fedjax_lab.models import layers
from fedjax_lab.types import Array


class CharLSTM(nn.Module):
    """An embedding of characters, layers of LSTM, and a head at the last place.

    One bias for each gate; PyTorch has two, which add up. The characters are the classes.
    """

    num_classes: int
    embedding: int = 8
    width: int = 256
    depth: int = 2

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, T], numbers of characters; mask [B] is not needed -> logits [B, K], [B, width].

        Raises BadInput where an example is not of one axis.
        """
        if x.ndim != 2:
            name, shown = self.name or "CharLSTM", "x".join(map(str, x.shape[1:])) or "numbers"
            raise BadInput(f"{name} needs texts (rows of characters), not {shown}")
        first = nn.initializers.normal(1.0)
        z = nn.Embed(self.num_classes, self.embedding, embedding_init=first)(x.astype(jnp.int32))
        init, dtype = layers.torch_uniform(self.width), z.dtype
        for _ in range(self.depth):
            cell = nn.OptimizedLSTMCell(
                self.width,
                kernel_init=init,
                recurrent_kernel_init=init,
                bias_init=init,
                dtype=dtype,  # of the products; the memory from place to place is float32
            )
            z = nn.RNN(cell)(z)
        z = z[:, -1]
        return layers.dense(z, self.num_classes, name="head"), z


def char_lstm(num_classes: int) -> CharLSTM:
    """LEAF's for Shakespeare: 817,872 parameters at its 80 characters."""
    return CharLSTM(num_classes, name="char_lstm")
