"""GPT-2 (Radford et al. 2019), with random or published weights.

Beside a `decoder` it has learned positions, layer normalization, GELU, biases everywhere, and one
product for queries, keys and values. Padding, logits and the loop over blocks are as there. The
head of published weights is a copy of the embedding.
"""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from fedjax_lab.models import caching, hub_files, language_models, layers, token_ids
from fedjax_lab.models.caching import Cache
from fedjax_lab.models.decoder import FIRST, PARAM_DTYPES, check_source, dense, logits, repeated
from fedjax_lab.models.language_models import Published
from fedjax_lab.ranges import NotNegative, OneOf, Within, checked
from fedjax_lab.types import Array

REMEDY = "it must be a language model of type gpt2 in the hub's format"


class Sizes(NamedTuple):
    """The sizes of a GPT-2."""

    width: int
    depth: int
    heads: int
    positions: int = 0  # 0: as many as the data need
    epsilon: float = 1e-5  # of the normalizations


class Block(nn.Module):
    """Attention and an MLP, each normalized before and with a residual connection."""

    sizes: Sizes
    dtype: Any  # of the weights

    @nn.compact
    def __call__(self, x: Array, places: tuple[Array | None, Any], old: Any = None):
        """x [B, T, D] -> [B, T, D], and keys and values, as the step of a loop.

        places: visible tokens, and the number of tokens in `old`: see `caching.attention`.
        """
        width, kind = x.shape[-1], x.dtype
        y = norm(x, self.sizes, "attention_norm").astype(kind)
        qkv = dense(y, 3 * width, "qkv", self.dtype, bias=True)
        heads = (*x.shape[:2], 3, self.sizes.heads, width // self.sizes.heads)
        q, k, v = jnp.moveaxis(qkv.reshape(heads), 2, 0)
        visible, count = places
        y, new = caching.attention(q, k, v, old, count, visible)
        x = x + dense(y.reshape(x.shape), width, "o", self.dtype, bias=True).astype(kind)
        y = dense(norm(x, self.sizes, "mlp_norm").astype(kind), 4 * width, "up", self.dtype, True)
        return x + dense(nn.gelu(y), width, "down", self.dtype, True).astype(kind), new


def norm(x: Array, sizes: Sizes, name: str) -> Array:
    """Layer normalization in float32; call it in a compact module."""
    return nn.LayerNorm(sizes.epsilon, use_fast_variance=False, name=name)(x)


class GPT2(nn.Module):
    """Embeddings of tokens and positions, blocks, and the logits of the next token."""

    num_classes: int
    sizes: Sizes
    vocabulary: int = 0  # number of embeddings; 0: number of classes
    remat: bool = False  # recompute the activations of blocks in the backward pass
    param_dtype: str = "float32"  # of embeddings and kernels; norms are float32
    pretrained: str = ""  # with the initial weights; see models/pretrained.py
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
        ids, sizes = token_ids.ids_of(self.name or "GPT2", x), self.sizes
        token_ids.check_length(x, sizes.positions)
        dtype = jnp.dtype(self.param_dtype)
        places, visible = jnp.arange(x.shape[1]), None
        if self.packed and cache is None:
            ids, places, visible = token_ids.unpack_records(ids)
        before, old = (0, None) if cache is None else (cache.length, cache[:2])
        longest = x.shape[1] if cache is None else self.most_tokens()

        def embedding(count, name):
            return nn.Embed(count, sizes.width, param_dtype=dtype, embedding_init=FIRST, name=name)

        words = embedding(self.vocabulary or self.num_classes, "embed")(ids)
        at = embedding(sizes.positions or longest, "positions")(places + before)
        blocks = repeated(Block, sizes.depth, self.remat)
        z, new = blocks(sizes, dtype, name="blocks")(words + at, (visible, before), old)
        z = norm(z, sizes, "norm")
        outputs = logits(z, self.num_classes, dtype), z
        return outputs if cache is None else (outputs, Cache(new[0], new[1], before + x.shape[1]))

    def empty_cache(self, rows: int, length: int) -> Cache:
        """The cache of texts without tokens, with room for `length` of them."""
        sizes = self.sizes
        return caching.empty(sizes.depth, sizes.heads, sizes.width // sizes.heads, rows, length)

    def most_tokens(self) -> int:
        """The number of positions of a module with weights, beyond which it has no cache."""
        return self.sizes.positions or self.variables["params"]["positions"]["embedding"].shape[0]

    def module_names(self) -> dict[str, str]:
        """The names of the layers in the hub's own implementation, by path."""
        return {
            path: name if path == "head" else f"transformer.{name}" for path, name in HUB.items()
        }

    def published_names(self) -> tuple[dict[str, str], ...]:
        """The names of the layers on the hub, by path."""
        return language_models.with_tied(HUB)


HUB = {
    "embed": "wte",
    "positions": "wpe",
    "norm": "ln_f",
    "head": "lm_head",
    "blocks/attention_norm": "h.{}.ln_1",
    "blocks/qkv": "h.{}.attn.c_attn",
    "blocks/o": "h.{}.attn.c_proj",
    "blocks/mlp_norm": "h.{}.ln_2",
    "blocks/up": "h.{}.mlp.c_fc",
    "blocks/down": "h.{}.mlp.c_proj",
}


@checked("model")
def gpt2(
    num_classes: int,
    *,
    width: NotNegative[int] = 0,
    depth: Annotated[int, Within(0, layers.MOST_LAYERS)] = 0,
    heads: NotNegative[int] = 0,
    positions: NotNegative[int] = 0,
    vocabulary: NotNegative[int] = 0,
    remat: bool = False,
    param_dtype: Annotated[str, OneOf(PARAM_DTYPES)] = "float32",
    pretrained: str = "",
) -> GPT2:
    """GPT-2 for config.task.name=tokens; a size of 0 is that of `pretrained`, or small.

    width: the size of a token; 0: 64.
    depth: the number of blocks; 0: 2.
    heads: the number of attention heads in each block; 0: 4.
    positions: the most tokens of a row; 0: as many as the data need.
    vocabulary, remat, param_dtype: as in `decoder`.
    pretrained: a folder in the hub's format with the initial weights, from which the sizes are
      read; otherwise as in `decoder`.

    Raises BadInput for a size that is not possible or is not that of the weights.
    """
    given = Sizes(width, depth, heads, positions, 0.0)
    made = GPT2(num_classes, given, vocabulary, remat, param_dtype, pretrained, name="gpt2")
    folder = Path(pretrained).expanduser()
    if pretrained and hub_files.is_model(folder):
        published = _described(folder)
        check_source(made, published)
        return made.clone(sizes=published.sizes, vocabulary=published.vocabulary)
    sizes = Sizes(width or 64, depth or 2, heads or 4, positions)
    layers.check_heads(sizes.width, sizes.heads)
    return made.clone(sizes=sizes)


def _described(folder: Path) -> Published:
    """What config.json says. Raises BadInput unless it is a supported GPT-2."""
    with hub_files.config(folder, ("gpt2",), REMEDY) as given:
        for key in ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size"):
            hub_files.check(key, given.get(key), int)
        epsilon = given.get("layer_norm_epsilon", 1e-5)
        hub_files.check("layer_norm_epsilon", epsilon, float)
        hub_files.check_word(
            "activation_function", given.get("activation_function", "gelu_new"), ("gelu_new",)
        )
        if given.get("n_inner") not in (None, 4 * given["n_embd"]):
            raise ValueError(f"n_inner is {given['n_inner']}, not four times n_embd")
        if given["n_embd"] % given["n_head"]:
            raise ValueError("n_head does not divide n_embd")
        sizes = Sizes(
            given["n_embd"], given["n_layer"], given["n_head"], given["n_positions"], epsilon
        )
        return Published(sizes, given["vocab_size"], tied=True)
