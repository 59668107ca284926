"""Random changes of training images: raw pixels [B, H, W, C], float32 in 0..255.

Each is a pure function (key, x) -> x of the same shape, which draws anew for every image. They
follow torchvision's on 8-bit images, but do not round interpolated and mixed pixels to whole
numbers. Apply them before normalization: pixels from outside of an image are 0, which is black.
"""

import math

import jax
import jax.numpy as jnp

from fedjax_lab.types import Array


def random_crop(key: Array, x: Array, pad: int, mode: str) -> Array:
    """Pads each image by `pad` pixels on every side and crops it to its old size at a random place.

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
    """Each image rotated about its center by an angle uniform in +-`degrees`."""
    return jax.vmap(rotate)(x, jax.random.uniform(key, (len(x),), x.dtype, -degrees, degrees))


def rotate(x: Array, degrees: Array) -> Array:
    """One image [H, W, C] rotated counterclockwise about its center; same size, outside is 0.

    Nearest neighbor: a pixel takes the value at the place in `x` that turns onto its center.
    """
    height, width = x.shape[:2]
    cos, sin = jnp.cos(jnp.radians(degrees)), jnp.sin(jnp.radians(degrees))
    down = jnp.arange(height)[:, None] + 0.5 - height / 2  # from the center of the image
    right = jnp.arange(width) + 0.5 - width / 2
    row = jnp.floor(sin * right + cos * down + height / 2).astype(jnp.int32)
    col = jnp.floor(cos * right - sin * down + width / 2).astype(jnp.int32)
    inside = (0 <= row) & (row < height) & (0 <= col) & (col < width)
    return jnp.where(inside[:, :, None], x[row, col], 0)


def random_resized_crop(
    key: Array, x: Array, scale: tuple[float, float], ratio: tuple[float, float]
) -> Array:
    """A part of each image, anywhere in it, stretched to the size of the whole.

    Its share of the area is uniform in `scale`, its width / height log-uniform in `ratio`: the
    first of ten draws that fits into the image. Without one it is the whole image, as in
    torchvision where the image's own width / height is within `ratio`.
    """
    height, width = x.shape[1:3]
    k_area, k_ratio, k_corner = jax.random.split(key, 3)
    area = height * width * jax.random.uniform(k_area, (len(x), 10), x.dtype, *scale)
    low, high = map(math.log, ratio)
    r = jnp.exp(jax.random.uniform(k_ratio, (len(x), 10), x.dtype, low, high))
    sides = jnp.round(jnp.sqrt(jnp.stack([area / r, area * r], -1)))  # [B, 10, 2]
    whole = jnp.array([height, width], x.dtype)
    fits = jnp.all(sides <= whole, -1)
    first = jnp.argmax(fits, 1)
    sides = jnp.where(fits.any(1)[:, None], sides[jnp.arange(len(x)), first], whole)
    corners = jnp.floor(jax.random.uniform(k_corner, (len(x), 2), x.dtype) * (whole - sides + 1))
    return jax.vmap(stretch)(x, corners, sides)


def stretch(x: Array, corner: Array, sides: Array) -> Array:
    """A rectangle of one image [H, W, C] stretched to all of it, bilinearly.

    corner, sides: [2], in whole pixels, first vertical. Nothing outside the rectangle is seen.
    """
    for axis in (0, 1):
        n = x.shape[axis]
        place = jnp.clip((jnp.arange(n) + 0.5) * (sides[axis] / n) - 0.5, 0, sides[axis] - 1)
        below = jnp.floor(place)
        share = jnp.expand_dims(place - below, (1 - axis, 2))
        low = (corner[axis] + below).astype(jnp.int32)
        high = jnp.minimum(low + 1, n - 1)  # counts 0 at the end of the rectangle
        x = (1 - share) * jnp.take(x, low, axis) + share * jnp.take(x, high, axis)
    return x


def gray(x: Array) -> Array:
    """Luminance of color images [..., 3] after ITU-R 601-2, as Pillow's: [..., 1]."""
    return jnp.sum(x * jnp.array([0.299, 0.587, 0.114], x.dtype), -1, keepdims=True)


def random_gray(key: Array, x: Array, share: float) -> Array:
    """This share of the color images, drawn one by one, loses its colors."""
    chosen = jax.random.bernoulli(key, share, (len(x), 1, 1, 1))
    return jnp.where(chosen, gray(x), x)


def brightness(x: Array, factor: Array) -> Array:
    """Scales the brightness of one color image [H, W, 3]; a factor of 0 makes it black."""
    return _mixed(x, 0.0, factor)


def contrast(x: Array, factor: Array) -> Array:
    """Scales the contrast of one color image [H, W, 3]; at 0 it is gray, of its mean luminance."""
    return _mixed(x, jnp.mean(gray(x)), factor)


def saturation(x: Array, factor: Array) -> Array:
    """Scales the saturation of one color image [H, W, 3]; a factor of 0 removes its colors."""
    return _mixed(x, gray(x), factor)


def _mixed(x, other, factor):
    return jnp.clip(factor * x + (1 - factor) * other, 0, 255)


def hue(x: Array, turn: Array) -> Array:
    """Moves the hues (the H of HSV) of one color image [H, W, 3] by `turn` full circles."""
    value = jnp.max(x, -1, keepdims=True)
    chroma = value - jnp.min(x, -1, keepdims=True)
    r, g, b = jnp.split(x / jnp.where(chroma > 0, chroma, 1), 3, -1)
    red, green, _ = jnp.split(x == value, 3, -1)
    sextant = jnp.where(red, g - b, jnp.where(green, 2 + b - r, 4 + r - g))
    # Each channel is the value less the chroma times a function of the hue, which is 0 around the
    # channel's own hue, 1 around the opposite one, and linear in between.
    k = (jnp.array([5.0, 3.0, 1.0], x.dtype) + sextant + 6 * turn) % 6
    return value - chroma * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)


def random_jitter(key: Array, x: Array, strength: float) -> Array:
    """Changes brightness, contrast, saturation, hue of color images [B, H, W, 3] in random order.

    The factors of the first three are uniform in 1 +- strength, the hue's turn in +- strength.
    Factors and order are drawn for each image, as torchvision does.
    """
    k_change, k_order = jax.random.split(key)
    change = jax.random.uniform(k_change, (len(x), 4), x.dtype, -strength, strength)
    amounts = change + jnp.array([1, 1, 1, 0], x.dtype)
    orders = jax.vmap(lambda k: jax.random.permutation(k, 4))(jax.random.split(k_order, len(x)))
    return jax.vmap(jitter)(x, amounts, orders)


def jitter(x: Array, amounts: Array, order: Array) -> Array:
    """Applies `brightness`, `contrast`, `saturation` and `hue` to one color image [H, W, 3].

    amounts [4]: how much of each, in this order. order [4]: the numbers of the steps as applied.
    """
    steps = (brightness, contrast, saturation, hue)

    def step(i, x):
        return jax.lax.switch(order[i], steps, x, amounts[order[i]])

    return jax.lax.fori_loop(0, len(steps), step, x)


def cifar10(key: Array, x: Array) -> Array:
    """The one of NIID-Bench and FedConcat for CIFAR-10: crop by 4 with reflection, flip."""
    k_crop, k_flip = jax.random.split(key)
    return random_flip(k_flip, random_crop(k_crop, x, 4, "reflect"))


def cifar100(key: Array, x: Array) -> Array:
    """Theirs for CIFAR-100 and Tiny-ImageNet: crop by 4 with zeros, flip, rotation by 15."""
    k_crop, k_flip, k_rotation = jax.random.split(key, 3)
    x = random_flip(k_flip, random_crop(k_crop, x, 4, "constant"))
    return random_rotation(k_rotation, x, 15)


def office(key: Array, x: Array) -> Array:
    """The one of FedBN and FedPick for Office-Caltech-10 and DomainNet: flip, rotation by 30."""
    k_flip, k_rotation = jax.random.split(key)
    return random_rotation(k_rotation, random_flip(k_flip, x), 30)


def domainbed(key: Array, x: Array) -> Array:
    """DomainBed's (Gulrajani and Lopez-Paz 2021, arXiv:2007.01434) for PACS, VLCS, Office-Home.

    A crop of 0.7 to 1 of the area, a flip, and a color jitter of 0.3; a tenth of the images become
    gray. The images must have colors.
    """
    k_crop, k_flip, k_jitter, k_gray = jax.random.split(key, 4)
    x = random_flip(k_flip, random_resized_crop(k_crop, x, (0.7, 1.0), (3 / 4, 4 / 3)))
    return random_gray(k_gray, random_jitter(k_jitter, x, 0.3), 0.1)


AUGMENTATIONS = {
    "none": None,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "office": office,
    "domainbed": domainbed,
}
