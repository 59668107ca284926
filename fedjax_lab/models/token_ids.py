"""Common parts of models of texts, whose examples are rows of token ids; 0 is padding.

Such a module has a field `vocabulary`, the number of token ids that it embeds. It is 0 until
`with_vocabulary` sets it to the number that the data need.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab.errors import BadInput
from fedjax_lab.models import modules
from fedjax_lab.types import Array

PADDING = 0


def ids_of(name: str, x: Array) -> Array:
    """Examples x [B, T] as int32. Raises BadInput, with the name of the model, for other shapes."""
    if x.ndim != 2:
        shown = "x".join(map(str, x.shape[1:])) or "numbers"
        raise BadInput(f"{name} needs texts (rows of token ids), not {shown}")
    return x.astype(jnp.int32)


def check_length(x: Array, positions: int) -> None:
    """Raises BadInput if rows of x [B, T] have more tokens than positions; 0: any number."""
    if positions and x.shape[1] > positions:
        raise BadInput(
            f"rows of {x.shape[1]} tokens are longer than the {positions} positions of the model;"
            " cut the texts"
        )


def unpack_records(ids: Array) -> tuple[Array, Array, Array]:
    """Rows of several records [B, T], where the first token of each is -1 - id, or a row begins.

    Returns the ids, the place of each token in its record [B, T], and which tokens are of the same
    record [B, 1, T, T].
    """
    place = jnp.arange(ids.shape[1])
    first = jax.lax.cummax(jnp.where(ids < 0, place, 0), axis=1)
    same = first[:, None, :, None] == first[:, None, None, :]
    return jnp.where(ids < 0, -1 - ids, ids), place - first, same


def mean_of_real(values: Array, real: Array) -> Array:
    """The mean of values [B, N, D] where real [B, N] is True; 0 if it is True nowhere: [B, D]."""
    weight = real.astype(values.dtype)
    return (values * weight[..., None]).sum(1) / jnp.maximum(weight.sum(1), 1)[:, None]


def count_padding(ids: Array) -> Array:
    """The number of padding tokens before the first word in each row of ids [B, T]: [B] int32."""
    return jnp.cumprod(ids == PADDING, 1).sum(1, dtype=jnp.int32)


def moved_to_front(ids: Array, count: Array) -> Array:
    """Moves the words of ids [B, T] before the padding; count [B] is that of the padding tokens."""
    place = (jnp.arange(ids.shape[1]) + count[:, None]) % ids.shape[1]
    return jnp.take_along_axis(ids, place, 1)


def takes_ids(net: nn.Module, x: Any) -> bool:
    """Whether the module embeds examples x [R, ...] as rows of token ids."""
    return isinstance(getattr(net, "vocabulary", None), int) and x.ndim == 2


def with_vocabulary(
    net: nn.Module, x: Any, limits: tuple[float, float] | None, num_classes: int
) -> nn.Module:
    """The module with its field `vocabulary` set to the size that examples x [R, ...] need.

    limits: the lowest and highest number that the model sees; None: some are not whole numbers. The
    vocabulary becomes the number of token ids, or of classes if that is larger; a value set in a
    config is kept. A field `packed` becomes whether rows have several records, the first token of
    each below 0. Modules without `vocabulary` are unchanged.

    Raises BadInput if the value in a config is too small, or if x has no token ids.
    """
    if not takes_ids(net, x):
        return net
    vocabulary, name = net.vocabulary, modules.name_of(net)
    below = limits is not None and limits[0] < 0
    packed = below and bool(np.all(x[:, 0] < 0))
    if limits is None or (below and not (packed and hasattr(net, "packed"))):
        what = "fractions" if limits is None else f"from {limits[0]:g} to {limits[1]:g}"
        raise BadInput(
            f"model {name} needs texts, rows of token ids; the data hold other numbers"
            f" ({x.dtype}, {what})" + "; packed rows are for decoder and gpt2" * packed
        )
    if packed:
        net = net.clone(packed=True)
    high = int(max(limits[1], -1 - limits[0]))
    if not vocabulary:
        return net.clone(vocabulary=max(high + 1, num_classes))
    if vocabulary <= high:
        remedy = f"leave it at 0, or set it to {high + 1}"
        if getattr(net, "pretrained", ""):
            remedy = "use the tokenizer of config.model.pretrained"
        raise BadInput(
            f"config.model.vocabulary={vocabulary} of model {name} is too small: the data have"
            f" token ids up to {high}; {remedy}"
        )
    return net
