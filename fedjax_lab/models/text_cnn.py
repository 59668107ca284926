"""Convolutions over sentences (Kim 2014, arXiv 1408.5882), the variant CNN-rand.

The authors' limit of 3 on the norm of the head's weights is left out.
"""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.errors import BadInput, check_below_one, check_not_negative
from fedjax_lab.models import layers, tokens
from fedjax_lab.types import Array


class TextCNN(nn.Module):
    """Filters over windows of words, the largest answer of each, dropout, and a head.

    A window is a row of the words' vectors, so that a convolution is a product of matrices, which
    is fast for many clients at once. Padding is zero, and windows of padding alone do not count.
    """

    num_classes: int
    embedding: int = 300
    filters: int = 100  # of each window
    windows: tuple[int, ...] = (3, 4, 5)
    dropout: float = 0.5
    vocabulary: int = 0

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, T] token ids; mask [B] is not needed -> logits [B, K], features [B, F]."""
        ids = tokens.ids_of(self.name or "TextCNN", x)
        if ids.shape[1] < max(self.windows):
            raise BadInput(
                f"config.model.windows={self.windows} needs texts of {max(self.windows)} tokens or"
                f" more, not {ids.shape[1]}"
            )
        real = ids != tokens.PADDING
        size = self.vocabulary or self.num_classes
        first = layers.torch_uniform(16)  # +-0.25, the authors'
        vectors = nn.Embed(size, self.embedding, embedding_init=first, name="words")(ids)
        vectors = vectors * real[..., None].astype(vectors.dtype)
        z = jnp.concatenate([self._largest(vectors, real, w) for w in self.windows], 1)
        z = nn.Dropout(self.dropout)(z, deterministic=not train)
        return layers.dense(z, self.num_classes, name="head"), z

    def _largest(self, vectors, real, window):
        """Of each filter of this window, over all places: [B, filters]."""
        count = vectors.shape[1] - window + 1
        rows = jnp.concatenate([vectors[:, i : i + count] for i in range(window)], 2)
        answers = nn.relu(layers.dense(rows, self.filters, name=f"window_{window}"))
        counts = jnp.stack([real[:, i : i + count] for i in range(window)]).any(0)
        return jnp.where(counts[..., None], answers, 0).max(1)


def text_cnn(
    num_classes: int,
    *,
    embedding: int = 300,
    filters: int = 100,
    windows: tuple[int, ...] = (3, 4, 5),
    dropout: float = 0.5,
    vocabulary: int = 0,
) -> TextCNN:
    """embedding: the size of a word's vector.

    filters: how many each window has.
    windows: how many words the filters look at.
    dropout: of the features, in training.
    """
    tokens.check_sizes(embedding=embedding, filters=filters)
    check_not_negative("model.dropout", dropout)
    check_below_one("model.dropout", dropout)
    if not windows or min(windows) < 1 or len(set(windows)) < len(windows):
        raise BadInput(f"config.model.windows must be different numbers from 1, got {windows}")
    return TextCNN(
        num_classes, embedding, filters, tuple(windows), dropout, vocabulary, name="text_cnn"
    )
