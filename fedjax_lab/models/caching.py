"""The keys and values that a language model keeps of the tokens so far, to write further ones.

A module that can keep them has the method `empty_cache`, and its call takes a `Cache` beside the
new tokens and returns (its outputs, the next cache). If it has the method `most_tokens`, a longer
cache is not used.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab.models import calls
from fedjax_lab.types import Array


class Cache(NamedTuple):
    """The keys and values of all blocks."""

    keys: Array  # [blocks, B, T, heads, size] float32, T tokens at most
    values: Array
    length: Array | int  # [] int32, the number of tokens so far


def empty(blocks: int, heads: int, size: int, rows: int, length: int) -> Cache:
    """The cache of texts without tokens. rows: B. length: T."""
    nothing = jnp.zeros((blocks, rows, length, heads, size))
    return Cache(nothing, nothing, jnp.int32(0))


@contextlib.contextmanager
def continued(cache: Cache | None, length: int) -> Iterator[list[Cache]]:
    """Inside the context, calls of a model go on after the tokens of a cache.

    cache: None begins with no token, and has room for `length` of them.

    Yields a list that gets the next cache in each call; none if the model cannot keep it.
    """
    made: list[Cache] = []

    def hook(layer, call, args, kwargs):
        if layer.path or layer.method != "__call__" or not hasattr(layer.module, "empty_cache"):
            return call(*args, **kwargs)
        most = getattr(layer.module, "most_tokens", None)
        if most is not None and length > most():
            return call(*args, **kwargs)
        old = layer.module.empty_cache(len(args[0]), length) if cache is None else cache
        outputs, new = call(*args, **kwargs, cache=old)
        made.append(new)
        return outputs

    with calls.intercepted(hook):
        yield made


def attention(
    q: Array,
    k: Array,
    v: Array,
    old: tuple[Array, Array] | None,
    count: Array | int,
    visible: Array | None = None,
    window: int = 0,
) -> tuple[Array, tuple[Array, Array] | None]:
    """Causal attention of new tokens, and the keys and values of a block with theirs.

    q, k, v: [B, S, heads, size] of the new tokens; k and v may have fewer heads.
    old: keys and values [B, T, heads, size] of a cache; None: there are no earlier tokens.
    count: the number of tokens in `old`.
    visible: [B, 1, S, S], which new tokens may see each other; only without a cache.
    window: how many tokens one attends to, itself included; 0: to all before it.
    """
    if old is None:
        sight = (window - 1, 0) if window else None
        made = jax.nn.dot_product_attention(
            q, k, v, mask=visible, is_causal=True, local_window_size=sight
        )
        return made, None
    whole: Any = tuple(
        jax.lax.dynamic_update_slice(a, b.astype(a.dtype), (0, count, 0, 0))
        for a, b in zip(old, (k, v), strict=True)
    )
    place, other = count + jnp.arange(q.shape[1])[:, None], jnp.arange(old[0].shape[1])
    seen = (other <= place) & ((other > place - window) if window else True)
    keys, values = (a.astype(k.dtype) for a in whole)
    return jax.nn.dot_product_attention(q, keys, values, mask=seen[None, None]), whole
