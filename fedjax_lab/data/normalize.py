"""Normalization of 8-bit pixels: (x - center) * scale. Examples of other types are not changed."""

import jax.numpy as jnp
import numpy as np

from fedjax_lab.data.lazy import LazyArray, limits
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array

CHANNELS = {  # mean and standard deviation of red, green and blue
    "cifar100": ((0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # as for torchvision's weights
}
NORMALIZATIONS = ("unit", "half", *CHANNELS)  # unit: pixels in 0..1; half: in -1..1


def center_and_scale(x: np.ndarray | LazyArray, normalize: str) -> tuple[Array, Array]:
    """The center and scale, [] or [channels], of a named normalization for examples x [R, ...]."""
    if x.dtype != np.uint8:
        return jnp.float32(0), jnp.float32(1)
    if normalize == "half":
        return jnp.float32(127.5), jnp.float32(1 / 127.5)
    if normalize in CHANNELS:
        if x.shape[1:][2:] != (3,):
            raise BadInput(f"config.data.normalize={normalize} needs color images")
        mean, std = (255 * jnp.array(a, jnp.float32) for a in CHANNELS[normalize])
        return mean, 1 / std
    return jnp.float32(0), jnp.float32(1 / 255)


def input_range(x: np.ndarray | LazyArray, normalize: str) -> tuple[Array, Array]:
    """The lowest and highest input of a model: from 0 and 255 for images, else from x's range."""
    center, scale = center_and_scale(x, normalize)
    low, high = (0.0, 255.0) if x.dtype == np.uint8 else limits(x)
    return (low - center) * scale, (high - center) * scale
