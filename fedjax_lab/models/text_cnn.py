"""A convolutional net for sentences (Kim 2014, arXiv 1408.5882), the variant CNN-rand.

The authors' constraint on the norm of the head's weights (at most 3) is omitted.
"""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.errors import BadInput
from fedjax_lab.models import layers, token_ids
from fedjax_lab.ranges import BelowOne, NotNegative, Positive, checked
from fedjax_lab.types import Array


class TextCNN(nn.Module):
    """Filters over windows of words, max-over-time pooling, dropout, and a head.

    A window is a row of concatenated word embeddings, so that a convolution is a matrix product,
    which is fast for many clients at once. The embedding of padding is zero, and windows with only
    padding are ignored.
    """

    num_classes: int
    embedding: int = 300
    filters: int = 100  # for each window size
    windows: tuple[int, ...] = (3, 4, 5)
    dropout: float = 0.5
    vocabulary: int = 0

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, T] token ids; mask [B] is not used -> logits [B, K], features [B, F]."""
        ids = token_ids.ids_of(self.name or "TextCNN", x)
        if ids.shape[1] < max(self.windows):
            raise BadInput(
                f"config.model.windows={self.windows} needs texts of {max(self.windows)} tokens or"
                f" more, not {ids.shape[1]}"
            )
        real = ids != token_ids.PADDING
        size = self.vocabulary or self.num_classes
        first = layers.torch_uniform(16)  # +-0.25, as in the authors' code
        vectors = nn.Embed(size, self.embedding, embedding_init=first, name="words")(ids)
        vectors = vectors * real[..., None].astype(vectors.dtype)
        z = jnp.concatenate([self._largest(vectors, real, w) for w in self.windows], 1)
        z = nn.Dropout(self.dropout)(z, deterministic=not train)
        return layers.dense(z, self.num_classes, name="head"), z

    def _largest(self, vectors, real, window):
        """The largest output of each filter of this window size in all positions: [B, filters]."""
        count = vectors.shape[1] - window + 1
        rows = jnp.concatenate([vectors[:, i : i + count] for i in range(window)], 2)
        answers = nn.relu(layers.dense(rows, self.filters, name=f"window_{window}"))
        counts = jnp.stack([real[:, i : i + count] for i in range(window)]).any(0)
        return jnp.where(counts[..., None], answers, 0).max(1)


@checked("model")
def text_cnn(
    num_classes: int,
    *,
    embedding: Positive[int] = 300,
    filters: Positive[int] = 100,
    windows: tuple[Positive[int], ...] = (3, 4, 5),
    dropout: BelowOne = 0.5,
    vocabulary: NotNegative[int] = 0,
) -> TextCNN:
    """Kim's convolutional net for sentences.

    embedding: the size of a word embedding.
    filters: the number of filters for each window size.
    windows: the window sizes: how many words a filter sees.
    dropout: the dropout rate of the features in training.
    vocabulary: the number of token ids; 0: as many as the data need.
    """
    if not windows or len(set(windows)) < len(windows):
        raise BadInput(f"config.model.windows must be distinct positive integers, got {windows}")
    return TextCNN(
        num_classes, embedding, filters, tuple(windows), dropout, vocabulary, name="text_cnn"
    )
