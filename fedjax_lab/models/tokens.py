"""Common parts of models of texts, whose examples are rows of token ids; 0 is padding.

Such a module has a field `vocabulary`, the number of token ids that it embeds. It is 0 until
`with_vocabulary` sets it to the number that the data need.
"""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from fedjax_lab.errors import BadInput, check_positive
from fedjax_lab.models import modules
from fedjax_lab.types import Array

PADDING = 0


def ids_of(name: str, x: Array) -> Array:
    """Examples x [B, T] as int32. Raises BadInput, with the name of the model, for other shapes."""
    if x.ndim != 2:
        shown = "x".join(map(str, x.shape[1:])) or "numbers"
        raise BadInput(f"{name} needs texts (rows of token ids), not {shown}")
    return x.astype(jnp.int32)


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


def with_vocabulary(
    net: nn.Module, x, limits: tuple[Array | float, Array | float], num_classes: int
) -> nn.Module:
    """The module with its field `vocabulary` set to the size that examples x [R, ...] need.

    limits: the lowest and highest number in x. The vocabulary becomes the number of token ids, or
    of classes if that is larger; a value set in a config is kept. Modules without that field are
    unchanged. Raises BadInput if the value in a config is too small, or if x has no token ids.
    """
    vocabulary = getattr(net, "vocabulary", None)
    if not isinstance(vocabulary, int) or x.ndim != 2:
        return net
    name = modules.name_of(net)
    low, high = map(float, limits)
    needed = high + 1
    if x.dtype == np.uint8 or low < 0 or not needed.is_integer():
        raise BadInput(
            f"model {name} needs texts, rows of token ids; the data hold other numbers"
            f" ({x.dtype}, from {low:g} to {high:g})"
        )
    if not vocabulary:
        return net.clone(vocabulary=max(int(needed), num_classes))
    if vocabulary < needed:
        raise BadInput(
            f"config.model.vocabulary={vocabulary} of model {name} is too small: the data have"
            f" token ids up to {int(high)}; leave it at 0, or set it to {int(needed)}"
        )
    return net


def check_sizes(**sizes: int) -> None:
    """Raises BadInput unless each of these settings of a model is above 0."""
    for key, value in sizes.items():
        check_positive(f"model.{key}", value)
