"""LSTMs for next-character and next-word prediction, initialized as in PyTorch.

LEAF's model for characters (Caldas et al. 2018, arXiv 1812.01097) and Reddi et al.'s for words
(2021, arXiv 2003.00295).
"""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.models import layers, recurrence, token_ids
from fedjax_lab.ranges import NotNegative, Positive, checked
from fedjax_lab.types import Array


class CharLSTM(nn.Module):
    """An embedding of characters or words, LSTM layers, and a head at the last position or all.

    There is one bias for each gate, where PyTorch has two, which are added. The classes are the
    characters or words.
    """

    num_classes: int
    embedding: int = 8
    width: int = 256
    depth: int = 2
    projection: int = 0  # size of a dense layer before the head; 0: none
    vocabulary: int = 0  # number of embeddings; 0: number of classes
    skips_padding: bool = False  # whether zeros before the first word are skipped
    causal: bool = False  # whether there is a head at each position

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, T], numbers of characters; mask [B] is not used -> logits [B, K], [B, width].

        If `causal`, logits [B, T, K] and features [B, T, width].

        Raises BadInput if an example does not have exactly one axis.
        """
        ids = token_ids.ids_of(self.name or "CharLSTM", x)
        first = nn.initializers.normal(1.0)
        size = self.vocabulary or self.num_classes
        count = token_ids.count_padding(ids) if self.skips_padding else None
        ids = ids if count is None else token_ids.moved_to_front(ids, count)
        z = nn.Embed(size, self.embedding, embedding_init=first)(ids.T)  # [T, B, embedding]
        for i in range(self.depth):
            z = LSTM(self.width, name=f"OptimizedLSTMCell_{i}")(z)
        if self.causal:
            z = jnp.swapaxes(z, 0, 1)
        else:
            z = z[-1] if count is None else _before_padding(z, count)
        if self.projection:
            z = layers.dense(z, self.projection, name="projection")
        return layers.dense(z, self.num_classes, name="head"), z


class LSTM(nn.Module):
    """An LSTM layer with the parameters of Flax's `OptimizedLSTMCell`, initialized as in PyTorch.

    The products have the type of the parameters, and the states from step to step are float32.
    """

    width: int

    @nn.compact
    def __call__(self, z: Array) -> Array:
        """z [T, B, D] -> the state after each step, [T, B, width] float32."""
        gates = [
            (
                Gate(self.width, use_bias=False, name=f"i{gate}")(z.shape[-1]),
                Gate(self.width, name=f"h{gate}")(self.width),
            )
            for gate in "ifgo"
        ]
        (kernel,), of_state = map(_joined, zip(*gates, strict=True))
        x = recurrence.multiply(z.astype(kernel.dtype), kernel)
        return recurrence.lstm(x, *of_state)


class Gate(nn.Module):
    """The kernel [inputs, width] of a gate, and its bias [width]."""

    width: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, inputs: int) -> tuple[Array, ...]:
        """inputs: the number of values that the kernel multiplies."""
        init = layers.torch_uniform(self.width)
        kernel = self.param("kernel", init, (inputs, self.width))
        if not self.use_bias:
            return (kernel,)
        return kernel, self.param("bias", init, (self.width,))


def _joined(gates):
    """The kernels of all gates as one, and the biases."""
    return [jnp.concatenate(arrays, axis=-1) for arrays in zip(*gates, strict=True)]


def _before_padding(z, count):
    """The last position of z [T, B, D] before `count` positions of padding, or 0: [B, D]."""
    last = len(z) - 1 - count
    at = jnp.take_along_axis(z, jnp.maximum(last, 0)[None, :, None], 0)[0]
    return jnp.where(last[:, None] >= 0, at, 0)


def char_lstm(num_classes: int) -> CharLSTM:
    """LEAF's model for Shakespeare: 817,872 parameters at its 80 characters."""
    return CharLSTM(num_classes, name="char_lstm")


def causal_lstm(num_classes: int) -> CharLSTM:
    """The `char_lstm` with a head at each position, for config.task.name=tokens.

    Reddi et al.'s model for Shakespeare: 820,522 parameters at its 90 tokens.
    """
    return CharLSTM(num_classes, causal=True, name="causal_lstm")


@checked("model")
def word_lstm(
    num_classes: int,
    *,
    embedding: Positive[int] = 96,
    width: Positive[int] = 670,
    depth: layers.Layers = 1,
    projection: NotNegative[int] = 96,
    vocabulary: NotNegative[int] = 0,
) -> CharLSTM:
    """Reddi et al.'s model for Stack Overflow: 4,050,748 parameters at 10,004 words.

    Padding before the first word is skipped, so that `length` does not affect shorter texts.

    embedding: the size of a word embedding.
    width: the size of the LSTM's state.
    depth: the number of LSTM layers.
    projection: the size of the dense layer between LSTM and head; 0: there is none.
    vocabulary: the number of token ids; 0: as many as the data need.
    """
    return CharLSTM(
        num_classes,
        embedding,
        width,
        depth,
        projection,
        vocabulary,
        skips_padding=True,
        name="word_lstm",
    )
