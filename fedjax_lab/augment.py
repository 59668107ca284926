"""Random changes of training images: raw pixels [B, H, W, C], float32 in 0..255.

Each is a pure function (key, x) -> x of the same shape, with draws of its own for every image.
Crop, flip and rotation follow torchvision's on 8-bit images. Apply before normalisation: what is
cut in from outside of an image is 0, black.
"""

import jax
import jax.numpy as jnp

from fedjax_lab.types import Array


def random_crop(key: Array, x: Array, pad: int, mode: str) -> Array:
    """Each image, grown by `pad` pixels on every side, cut to its old size somewhere.

    `mode` is `jax.numpy.pad`'s: "reflect", without repeating the border, or "constant", zeros.
    """
    grown = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), mode)
    corners = jax.random.randint(key, (len(x), 2), 0, 2 * pad + 1)

    def cut(image, corner):
        return jax.lax.dynamic_slice(image, (*corner, 0), x.shape[1:])

    return jax.vmap(cut)(grown, corners)


def random_flip(key: Array, x: Array) -> Array:
    """Half of the images, drawn one by one, are mirrored left to right."""
    flipped = jax.random.bernoulli(key, shape=(len(x), 1, 1, 1))
    return jnp.where(flipped, x[:, :, ::-1], x)


def random_rotation(key: Array, x: Array, degrees: float) -> Array:
    """Each image rotated about its centre by an angle uniform in +-`degrees`."""
    return jax.vmap(rotate)(x, jax.random.uniform(key, (len(x),), x.dtype, -degrees, degrees))


def rotate(x: Array, degrees: Array) -> Array:
    """One image [H, W, C] rotated counterclockwise about its centre; same size, outside is 0.

    Nearest neighbour: a pixel takes the value at the place in `x` that turns onto its centre.
    """
    height, width = x.shape[:2]
    cos, sin = jnp.cos(jnp.radians(degrees)), jnp.sin(jnp.radians(degrees))
    down = jnp.arange(height)[:, None] + 0.5 - height / 2  # from the centre of the image
    right = jnp.arange(width) + 0.5 - width / 2
    row = jnp.floor(sin * right + cos * down + height / 2).astype(jnp.int32)
    col = jnp.floor(cos * right - sin * down + width / 2).astype(jnp.int32)
    inside = (0 <= row) & (row < height) & (0 <= col) & (col < width)
    return jnp.where(inside[:, :, None], x[row, col], 0)


def cifar10(key: Array, x: Array) -> Array:
    """NIID-Bench's and FedConcat's for CIFAR-10: crop by 4 with reflection, flip."""
    k_crop, k_flip = jax.random.split(key)
    return random_flip(k_flip, random_crop(k_crop, x, 4, "reflect"))


def cifar100(key: Array, x: Array) -> Array:
    """Theirs for CIFAR-100 and Tiny-ImageNet: crop by 4 with zeros, flip, rotation by 15."""
    k_crop, k_flip, k_rotation = jax.random.split(key, 3)
    x = random_flip(k_flip, random_crop(k_crop, x, 4, "constant"))
    return random_rotation(k_rotation, x, 15)


def office(key: Array, x: Array) -> Array:
    """FedBN's and FedPick's for Office-Caltech-10 and DomainNet: flip, rotation by 30."""
    k_flip, k_rotation = jax.random.split(key)
    return random_rotation(k_rotation, random_flip(k_flip, x), 30)


AUGMENTATIONS = {"none": None, "cifar10": cifar10, "cifar100": cifar100, "office": office}
