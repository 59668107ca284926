"""Random augmentations of training images: raw pixels [B, H, W, C], float32 in 0..255.

Each augmentation is a pure function (key, x) -> x that keeps the shape and draws new random numbers
for every image. They follow torchvision's transforms of 8-bit images, except that interpolated and
mixed pixels are not rounded to integers. Apply them before normalization: pixels outside an image
are 0, which is black.
"""

import math

import jax
import jax.numpy as jnp

from fedjax_lab.types import Array


def random_crop(key: Array, x: Array, pad: int, mode: str) -> Array:
    """Pads each image by `pad` pixels on every side and crops it at random to its original size.

    `mode` is `jax.numpy.pad`'s: "reflect" (without repeating the border) or "constant" (zeros).
    """
    grown = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), mode)
    corners = jax.random.randint(key, (len(x), 2), 0, 2 * pad + 1)

    def cut(image, corner):
        return jax.lax.dynamic_slice(image, (*corner, 0), x.shape[1:])

    return jax.vmap(cut)(grown, corners)


def random_flip(key: Array, x: Array) -> Array:
    """Mirrors each image left to right with probability 1/2."""
    flipped = jax.random.bernoulli(key, shape=(len(x), 1, 1, 1))
    return jnp.where(flipped, x[:, :, ::-1], x)


def random_rotation(key: Array, x: Array, degrees: float) -> Array:
    """Rotates each image about its center by an angle drawn uniformly from +-`degrees`."""
    return jax.vmap(rotate)(x, jax.random.uniform(key, (len(x),), x.dtype, -degrees, degrees))


def rotate(x: Array, degrees: Array) -> Array:
    """Rotates an image [H, W, C] counterclockwise about its center; it keeps its size.

    Nearest neighbor: each output pixel takes the value of the input pixel that is rotated onto its
    center. Output pixels without such an input pixel are 0.
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
    """Crops a random rectangle of each image and stretches it to the size of the image.

    The share of the area is uniform in `scale`, and width / height is log-uniform in `ratio`. The
    first of ten draws that fits into the image is used. If none fits, the whole image is, as in
    torchvision for images whose own width / height is within `ratio`.
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
    """Stretches a rectangle of an image [H, W, C] to the size of the image, bilinearly.

    corner, sides: [2], in whole pixels, vertical first. Pixels outside the rectangle are not used.
    """
    for axis in (0, 1):
        n = x.shape[axis]
        place = jnp.clip((jnp.arange(n) + 0.5) * (sides[axis] / n) - 0.5, 0, sides[axis] - 1)
        below = jnp.floor(place)
        share = jnp.expand_dims(place - below, (1 - axis, 2))
        low = (corner[axis] + below).astype(jnp.int32)
        high = jnp.minimum(low + 1, n - 1)  # has weight 0 at the end of the rectangle
        x = (1 - share) * jnp.take(x, low, axis) + share * jnp.take(x, high, axis)
    return x


def gray(x: Array) -> Array:
    """Luma of color images [..., 3] by ITU-R BT.601, as in Pillow: [..., 1]."""
    return jnp.sum(x * jnp.array([0.299, 0.587, 0.114], x.dtype), -1, keepdims=True)


def random_gray(key: Array, x: Array, share: float) -> Array:
    """Turns each color image gray with probability `share`."""
    chosen = jax.random.bernoulli(key, share, (len(x), 1, 1, 1))
    return jnp.where(chosen, gray(x), x)


def brightness(x: Array, factor: Array) -> Array:
    """Scales the brightness of one color image [H, W, 3]; a factor of 0 makes it black."""
    return _mixed(x, 0.0, factor)


def contrast(x: Array, factor: Array) -> Array:
    """Scales the contrast of one color image [H, W, 3]; 0 gives a gray of its mean luma."""
    return _mixed(x, jnp.mean(gray(x)), factor)


def saturation(x: Array, factor: Array) -> Array:
    """Scales the saturation of one color image [H, W, 3]; a factor of 0 removes its colors."""
    return _mixed(x, gray(x), factor)


def _mixed(x, other, factor):
    return jnp.clip(factor * x + (1 - factor) * other, 0, 255)


def hue(x: Array, turn: Array) -> Array:
    """Shifts the hue (the H of HSV) of one color image [H, W, 3] by `turn` full circles."""
    value = jnp.max(x, -1, keepdims=True)
    chroma = value - jnp.min(x, -1, keepdims=True)
    r, g, b = jnp.split(x / jnp.where(chroma > 0, chroma, 1), 3, -1)
    red, green, _ = jnp.split(x == value, 3, -1)
    sextant = jnp.where(red, g - b, jnp.where(green, 2 + b - r, 4 + r - g))
    # Each channel is value - chroma * f(hue), where f is 0 around the channel's own hue, 1 around
    # the opposite hue, and linear in between.
    k = (jnp.array([5.0, 3.0, 1.0], x.dtype) + sextant + 6 * turn) % 6
    return value - chroma * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)


def random_jitter(key: Array, x: Array, strength: float) -> Array:
    """Jitters brightness, contrast, saturation and hue of images [B, H, W, 3] in random order.

    The factors of the first three are uniform in 1 +- strength, and the hue shift is uniform in
    +- strength. Factors and order are drawn for each image, as in torchvision.
    """
    k_change, k_order = jax.random.split(key)
    change = jax.random.uniform(k_change, (len(x), 4), x.dtype, -strength, strength)
    amounts = change + jnp.array([1, 1, 1, 0], x.dtype)
    orders = jax.vmap(lambda k: jax.random.permutation(k, 4))(jax.random.split(k_order, len(x)))
    return jax.vmap(jitter)(x, amounts, orders)


def jitter(x: Array, amounts: Array, order: Array) -> Array:
    """Applies `brightness`, `contrast`, `saturation` and `hue` to one color image [H, W, 3].

    amounts [4]: the factor or shift of each step, in this order. order [4]: the indices of the
    steps in the order in which they are applied.
    """
    steps = (brightness, contrast, saturation, hue)

    def step(i, x):
        return jax.lax.switch(order[i], steps, x, amounts[order[i]])

    return jax.lax.fori_loop(0, len(steps), step, x)


def cifar10(key: Array, x: Array) -> Array:
    """Augments images as NIID-Bench and FedConcat do for CIFAR-10.

    Random crop after reflecting 4 pixels at each border, random flip.
    """
    k_crop, k_flip = jax.random.split(key)
    return random_flip(k_flip, random_crop(k_crop, x, 4, "reflect"))


def cifar100(key: Array, x: Array) -> Array:
    """Augments images as NIID-Bench and FedConcat do for CIFAR-100 and Tiny-ImageNet.

    Random crop with 4 zero pixels of padding, random flip, rotation by up to 15 degrees.
    """
    k_crop, k_flip, k_rotation = jax.random.split(key, 3)
    x = random_flip(k_flip, random_crop(k_crop, x, 4, "constant"))
    return random_rotation(k_rotation, x, 15)


def office(key: Array, x: Array) -> Array:
    """Augments images as FedBN and FedPick do for Office-Caltech-10 and DomainNet.

    Random flip, rotation by up to 30 degrees.
    """
    k_flip, k_rotation = jax.random.split(key)
    return random_rotation(k_rotation, random_flip(k_flip, x), 30)


def domainbed(key: Array, x: Array) -> Array:
    """Augments images as DomainBed does for PACS, VLCS and Office-Home (arXiv:2007.01434).

    A random crop of 0.7 to 1 of the area, a random flip, and a color jitter of 0.3; a tenth of the
    images turns gray. It needs color images.
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
