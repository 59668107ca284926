"""Decoders of the Llama family, with random or published weights.

One module covers Llama 2 (Touvron et al. 2023, arXiv 2307.09288) and 3, Mistral (Jiang et al. 2023,
arXiv 2310.06825), Qwen 2 and 3, SmolLM2 and TinyLlama. A block is s = x + attention(norm(x)),
s + down(silu(gate(norm(s))) * up(norm(s))), with root mean square norms, rotary positions (Su et
al. 2021, arXiv 2104.09864), and groups of heads that share keys and values (Ainslie et al. 2023,
arXiv 2305.13245). The blocks are a loop over stacked weights, as in `vit`.

Logits are float32, also where products are computed in bfloat16. Padding is on the right, where no
real token attends to it, so that it needs no mask; id 0 is a token like any other. A published
model whose head is its embedding ("tied") is read as a copy: in training of all weights the two
then differ.
"""

from functools import partial
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab.errors import BadInput
from fedjax_lab.models import caching, language_models, layers, token_ids
from fedjax_lab.models.caching import Cache
from fedjax_lab.models.language_models import Sizes
from fedjax_lab.ranges import NotNegative, OneOf, Within, checked
from fedjax_lab.types import Array

FIRST = nn.initializers.normal(0.02)  # the hub's `initializer_range`
PARAM_DTYPES = ("float32", "bfloat16")
SMALL: dict[str, Any] = {  # of random weights, where no other size is given
    "width": 64,
    "depth": 2,
    "heads": 4,
    "rope_base": 10_000.0,
    "epsilon": 1e-5,
}


def rotations(sizes: Sizes, places: Array) -> tuple[Array, Array]:
    """The cosines and sines of the angles of these positions [...], [..., head_dim / 2] each."""
    waves = sizes.rope_base ** (np.arange(0, sizes.head_dim, 2) / sizes.head_dim)
    if sizes.rope_factors:
        waves = waves * np.array(sizes.rope_factors)
    angles = places.astype(jnp.float32)[..., None] / jnp.asarray(waves, jnp.float32)
    return jnp.cos(angles), jnp.sin(angles)


def rotated(x: Array, turns: tuple[Array, Array]) -> Array:
    """Rotates the pairs (i, i + H / 2) of x [B, T, N, H] by the angles of their positions."""
    cos, sin = (each[..., None, :] for each in turns)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def dense(x: Array, features: int, name: str, dtype: Any, bias=False, dot_general=None) -> Array:
    """A dense layer with weights of this type; call it in a compact module."""
    return nn.Dense(
        features,
        bias,
        param_dtype=dtype,
        kernel_init=FIRST,
        dot_general=dot_general,
        name=name,
    )(x)


def logits(z: Array, num_classes: int, dtype: Any) -> Array:
    """The head, in a compact module: features [B, T, D] -> [B, T, K] in float32."""
    in_float32 = partial(jax.lax.dot_general, preferred_element_type=jnp.float32)
    return dense(z, num_classes, "head", dtype, dot_general=in_float32)


def repeated(block: type[nn.Module], depth: int, remat: bool) -> Any:
    """A loop over blocks with stacked weights, and with the keys and values of a cache.

    remat: the activations are computed twice.
    """
    return nn.scan(
        nn.remat(block, prevent_cse=False) if remat else block,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=(nn.broadcast, 0),
        length=depth,
    )


class Block(nn.Module):
    """Attention and an MLP, each normalized before and with a residual connection."""

    sizes: Sizes
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Array, places: tuple[Any, Array | None, Any], old: Any = None):
        """x [B, T, D] -> [B, T, D], and keys and values, as the step of a loop.

        places: turns, visible tokens, and the number of tokens in `old`: see `caching.attention`.
        """
        mixed, new = self._attention(self._norm(x, "attention_norm"), *places, old)
        s = x + mixed.astype(x.dtype)
        y = self._norm(s, "mlp_norm")
        gate, up = (self._dense(y, self.sizes.hidden, name) for name in ("gate", "up"))
        return s + self._dense(nn.silu(gate) * up, x.shape[-1], "down").astype(x.dtype), new

    def _attention(self, y, turns, visible, count, old):
        sizes, outputs = self.sizes, y.shape[-1]

        def heads(name, count):
            z = self._dense(y, count * sizes.head_dim, name, sizes.bias)
            return z.reshape(*y.shape[:2], count, sizes.head_dim)

        q, k = heads("q", sizes.heads), heads("k", sizes.kv_heads)
        if sizes.qk_norm:
            q, k = self._norm(q, "q_norm"), self._norm(k, "k_norm")
        q, k, v = rotated(q, turns), rotated(k, turns), heads("v", sizes.kv_heads)
        y, new = caching.attention(q, k, v, old, count, visible, sizes.window)
        return self._dense(y.reshape(*y.shape[:2], -1), outputs, "o"), new

    def _norm(self, x, name):
        return nn.RMSNorm(self.sizes.epsilon, name=name)(x).astype(x.dtype)

    def _dense(self, x, features, name, bias=False):
        return dense(x, features, name, self.param_dtype, bias)


class Decoder(nn.Module):
    """Embeddings of tokens, blocks, a norm, and the logits of the next token at each position."""

    num_classes: int
    sizes: Sizes
    vocabulary: int = 0  # number of embeddings; 0: number of classes
    remat: bool = False  # recompute the activations of blocks in the backward pass
    param_dtype: str = "float32"  # of embeddings and kernels; norms are float32
    pretrained: str = ""  # with the initial weights; see models/pretrained.py
    tied: bool = False  # whether these have no head apart from the embedding
    packed: bool = False  # whether a row has several records: see `token_ids.unpack_records`

    @nn.compact
    def __call__(
        self,
        x: Array,
        train: bool = False,
        mask: Array | None = None,
        cache: Cache | None = None,
    ):
        """x [B, T] token ids; mask [B] is not used -> logits [B, T, K], features [B, T, D].

        With a cache of earlier tokens ((logits, features), the next cache).
        """
        ids, sizes = token_ids.ids_of(self.name or "Decoder", x), self.sizes
        dtype, count = jnp.dtype(self.param_dtype), self.vocabulary or self.num_classes
        token_ids.check_length(x, sizes.positions)
        places, visible = jnp.arange(x.shape[1]), None
        if self.packed and cache is None:
            ids, places, visible = token_ids.unpack_records(ids)
        before, old = (0, None) if cache is None else (cache.length, cache[:2])
        places = places + before
        words = nn.Embed(count, sizes.width, param_dtype=dtype, embedding_init=FIRST, name="embed")(
            ids
        )
        blocks = repeated(Block, sizes.depth, self.remat)
        where = rotations(sizes, places), visible, before
        z, new = blocks(sizes, dtype, name="blocks")(words, where, old)
        z = nn.RMSNorm(sizes.epsilon, name="norm")(z)
        outputs = logits(z, self.num_classes, dtype), z
        return outputs if cache is None else (outputs, Cache(new[0], new[1], before + x.shape[1]))

    def empty_cache(self, rows: int, length: int) -> Cache:
        """The cache of texts without tokens, with room for `length` of them."""
        sizes = self.sizes
        return caching.empty(sizes.depth, sizes.kv_heads, sizes.head_dim, rows, length)

    def module_names(self) -> dict[str, str]:
        """The names of the layers in the hub's own implementation, by path."""
        return language_models.HUB

    def published_names(self) -> tuple[dict[str, str], ...]:
        """The names of the layers on the hub and in GGUF, by path."""
        hub, gguf = language_models.HUB, language_models.GGUF
        return language_models.with_tied(hub, gguf) if self.tied else (hub, gguf)


@checked("model")
def decoder(
    num_classes: int,
    *,
    width: NotNegative[int] = 0,
    depth: Annotated[int, Within(0, layers.MOST_LAYERS)] = 0,
    heads: NotNegative[int] = 0,
    kv_heads: NotNegative[int] = 0,
    head_dim: NotNegative[int] = 0,
    hidden: NotNegative[int] = 0,
    window: NotNegative[int] = 0,
    bias: bool = False,
    qk_norm: bool = False,
    rope_base: NotNegative[float] = 0.0,
    vocabulary: NotNegative[int] = 0,
    remat: bool = False,
    param_dtype: Annotated[str, OneOf(PARAM_DTYPES)] = "float32",
    pretrained: str = "",
) -> Decoder:
    """A decoder for config.task.name=tokens; a size of 0 is that of `pretrained`, or small.

    width: the size of a token; 0: 64.
    depth: the number of blocks; 0: 2.
    heads: the number of attention heads in each block; 0: 4.
    kv_heads: the number of heads of keys and values, which divides `heads`; 0: as many.
    head_dim: the size of a head; 0: width / heads.
    hidden: the width of the hidden layer of the MLPs; 0: three times the width.
    window: how many tokens one attends to, itself included (Mistral 0.1); 0: to all before it.
    bias: whether q, k and v have biases (Qwen 2).
    qk_norm: whether q and k are normalized (Qwen 3).
    rope_base: the base of the rotary wavelengths; 0: 10000.
    vocabulary: the number of token ids; 0: that of `pretrained`, or as many as the data need.
    remat: save memory in training. Only the values between blocks are kept for the backward pass,
      which computes each block again: about a third more arithmetic.
    param_dtype: of the weights, float32 or bfloat16; norms are float32.
    pretrained: a folder in the hub's format or a GGUF file with the initial weights, from which the
      sizes are read; if the data have fewer tokens, the head has the first of them. Or a file of
      your own weights, for which the sizes must be set.

    Raises BadInput for a size that is not possible or is not that of the weights.
    """
    given = Sizes(width, depth, heads, kv_heads, head_dim, hidden, window, bias, qk_norm, rope_base)
    made = Decoder(num_classes, given, vocabulary, remat, param_dtype, pretrained, name="decoder")
    published = language_models.describe(pretrained) if pretrained else None
    if published is None:
        return made.clone(sizes=_small(given))
    check_source(made, published)
    return made.clone(sizes=published.sizes, vocabulary=published.vocabulary, tied=published.tied)


def check_source(made: Any, published: language_models.Published) -> None:
    """Raises BadInput if a setting, or the number of classes, contradicts the published model."""
    source = {**published.sizes._asdict(), "vocabulary": published.vocabulary}
    for key, value in {**made.sizes._asdict(), "vocabulary": made.vocabulary}.items():
        if value and value != source[key]:
            raise BadInput(
                f"config.model.{key}={value} contradicts {made.pretrained}, which has"
                f" {source[key]}; leave it out"
            )
    if made.num_classes > published.vocabulary:
        raise BadInput(
            f"{made.pretrained} has {published.vocabulary} token ids, but the data need"
            f" {made.num_classes}; use the tokenizer of the model"
        )


def _small(given: Sizes) -> Sizes:
    """Small sizes where none is given. Raises BadInput for sizes that are not possible."""
    sizes = given._replace(**{k: v for k, v in SMALL.items() if not getattr(given, k)})
    if not sizes.head_dim:
        layers.check_heads(sizes.width, sizes.heads)
    sizes = sizes._replace(
        kv_heads=sizes.kv_heads or sizes.heads,
        head_dim=sizes.head_dim or sizes.width // sizes.heads,
        hidden=sizes.hidden or 3 * sizes.width,
    )
    try:
        language_models.check_heads(sizes)
    except ValueError as error:
        raise BadInput(f"config.model.{error}") from None
    return sizes
