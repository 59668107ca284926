"""fastText's classifier (Joulin et al. 2017, arXiv 1607.01759): a mean of word embeddings."""

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.models import layers, token_ids
from fedjax_lab.ranges import NotNegative, Positive, checked
from fedjax_lab.types import Array

PRIME = 116_049_371  # factor of the first word in the hash of a bigram


class FastText(nn.Module):
    """A linear classifier of the mean embedding of a text's words and bigrams.

    Bigrams share `buckets` embeddings. Embeddings are initialized uniformly in +-1/width, as in the
    authors' code.
    """

    num_classes: int
    width: int = 64
    buckets: int = 10_000  # 0: no bigrams
    vocabulary: int = 0

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None):
        """x [B, T] token ids; mask [B] is not used -> logits [B, K], features [B, width]."""
        ids = token_ids.ids_of(self.name or "FastText", x)
        real = ids != token_ids.PADDING
        init = layers.torch_uniform(self.width**2)  # +-1/width
        size = self.vocabulary or self.num_classes
        vectors = nn.Embed(size, self.width, embedding_init=init, name="words")(ids)
        if self.buckets:
            table = nn.Embed(self.buckets, self.width, embedding_init=init, name="bigrams")
            vectors = jnp.concatenate([vectors, table(bigrams(ids, self.buckets))], 1)
            real = jnp.concatenate([real, real[:, :-1] & real[:, 1:]], 1)
        z = token_ids.mean_of_real(vectors, real)
        return layers.dense(z, self.num_classes, name="head"), z


def bigrams(ids: Array, buckets: int) -> Array:
    """The buckets of all pairs of neighbors in ids [B, T]: [B, T - 1] int32."""
    first, second = (part.astype(jnp.uint32) for part in (ids[:, :-1], ids[:, 1:]))
    return ((first * jnp.uint32(PRIME) + second) % jnp.uint32(buckets)).astype(jnp.int32)


@checked("model")
def fasttext(
    num_classes: int,
    *,
    width: Positive[int] = 64,
    buckets: NotNegative[int] = 10_000,
    vocabulary: NotNegative[int] = 0,
) -> FastText:
    """fastText's classifier: the mean embedding of words and bigrams, and a linear head.

    width: the size of an embedding.
    buckets: the number of embeddings that all bigrams share; 0: no bigrams.
    vocabulary: the number of token ids; 0: as many as the data need.
    """
    return FastText(num_classes, width, buckets, vocabulary, name="fasttext")
