"""What the numbers of examples mean, and how they are scaled: one rule for every data source.

Images are examples of two or more axes: x [R, H, W], [R, H, W, channels] or more. Their shape and
the range of their numbers decide, never their integer type:

  integers in 0..255       8-bit pixels; `as_meant` stores them as uint8
  only 0 and 1             black and white; taken as they are
  other integers           refused, unless data.normalize says what to do with them
  real numbers             taken as they are; refused if their range is plainly 0..255

Rows of numbers, x [R, D], are columns of a table or token ids, and are taken as they are. So after
`as_meant`, the type uint8 means 8-bit pixels, and nothing else does. The model sees
(x - center) * scale, which `scale_of` computes from config.data.normalize.

A large number with a small spread, such as a time since 1970, loses its last digits in float32.
Where that makes different numbers equal, the type is float64, and `in_float32` scales the numbers
before it converts them.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data.lazy import PIECE, LazyArray, example_bytes, limits, pieces
from fedjax_lab.data.precision import NOISE, SAMPLE, as_type, exact, merged
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array

CHANNELS = {  # mean and standard deviation of red, green and blue
    "cifar100": ((0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # as for torchvision's weights
}
WORDS = {  # what each normalization does, as a run says it
    "unit": "divided by 255",
    "half": "scaled to -1..1",
    **{name: f"normalized by {name}'s mean and standard deviation" for name in CHANNELS},
    "pixels": "divided by 255",
    "standard": "normalized by the mean and standard deviation of the training examples",
    "none": "as they are",
}
SETTING = "--config.data.normalize"
PLAINLY = 127  # numbers from 0 that exceed it, but not 255, are plainly pixels
LARGE = 3.0  # root mean square of a column; examples of LONG norm can then keep an MLP from
LONG = 30.0  # learning anything but the majority class
UNLIKE = 1000.0  # ratio of the standard deviations of two columns; the model then ignores one


class Scale(NamedTuple):
    """How the numbers of a data set become inputs of a model, (x - center) * scale."""

    center: Array | np.ndarray  # [], [channels] or [columns], in float64 if x is
    scale: Array | np.ndarray
    lowest: Array | np.ndarray  # input of the model, for Task.bounds
    highest: Array | np.ndarray
    limits: tuple[float, float]  # the lowest and the highest number in x


# What the numbers are


def is_image(x: Any) -> bool:
    """Whether examples x [R, ...] are images: they have two or more axes."""
    return len(x.shape) > 2


def is_pixels(x: Any) -> bool:
    """Whether examples x, after `as_meant`, are images of integers from 0 to 255."""
    return x.dtype == np.uint8


def as_meant(x: Any) -> Any:
    """The examples x [R, ...] in a type that says what their numbers mean.

    8-bit pixels become uint8; images and rows of only 0 and 1 become int8. Other rows become real
    numbers, unless they have a type of token ids: int8, int16 or int32. Numbers that float32 cannot
    tell apart become float64. Memory-mapped and lazy arrays are converted when they are read. The
    numbers in a lazy array of uint8 are not examined: its files hold 8-bit pixels.

    Raises BadInput if the axes of images are channels first, or float64 is not exact enough either.
    """
    kind = np.dtype(x.dtype)
    check_axes(x.shape)
    if kind.kind == "f" and kind.itemsize <= 4:
        return x
    if kind.kind == "f" or (kind.itemsize >= 4 and merged(x)):
        return exact("the examples", x)
    if not is_image(x):
        return x if kind in (np.int8, np.int16, np.int32) else _rows(x)
    if kind == np.uint8:
        return as_type(x, np.int8) if _is_binary(x) else x
    low, high = limits(x)
    if low < 0 or high > 255:
        if kind.itemsize < 4 or kind == np.int32:
            return x
        fits = -(2**31) <= low and high < 2**31
        return as_type(x, np.int32 if fits else np.float32)  # JAX would truncate 64 bits to 32
    return as_type(x, np.int8 if high <= 1 else np.uint8)


def _rows(x):
    """Rows of numbers; one-byte numbers keep a type that needs little memory."""
    if x.dtype.itemsize > 1:
        return as_type(x, np.float32)
    return as_type(x, np.int8 if _is_binary(x) else np.float16)  # exact up to 2048


def _is_binary(x):
    """Whether an array in memory, or a memory-mapped one, of bool or uint8 has only 0 and 1."""
    return not isinstance(x, LazyArray) and not any(x[rows].max() > 1 for rows in pieces(x))


def check_axes(shape: tuple[int, ...]) -> None:
    """Raises BadInput if examples of this shape [R, ...] are images whose channels come first."""
    if len(shape) != 4 or shape[3] <= 4:
        return
    _, channels, height, width = shape
    like_sides = max(height, width) <= 2 * min(height, width)  # unlike those of most signals
    if (channels <= 4 < height and like_sides) or channels < height == width:
        raise BadInput(
            f"x has the shape {list(shape)}, which looks like [R, channels, H, W]; images are"
            " [R, H, W, channels]: use numpy.moveaxis(x, 1, -1)"
        )


def is_of_pixels(low: float, high: float) -> bool:
    """Whether numbers from `low` to `high` can only be pixels in 0..255."""
    return low >= 0 and PLAINLY < high <= 255


def are_whole(x: Any) -> bool:
    """Whether all numbers of x [R, ...] are whole."""
    return x.dtype.kind in "biu" or not any((x[rows] % 1).any() for rows in pieces(x))


# How they are scaled


def scale_of(x: Any, normalize: str, train: np.ndarray | None = None) -> Scale:
    """The scale of examples x [R, ...], after `as_meant`, by a name of WORDS.

    train: the numbers of the training examples, for "standard"; None: all.

    Raises BadInput if the numbers have no such meaning, or are not finite.
    """
    low, high = (0.0, 255.0) if is_pixels(x) else limits(x)
    if normalize != "standard" and (lost := merged(x) if x.dtype == np.float64 else None):
        raise BadInput(
            f"x has numbers in column {lost.column} that float32 cannot tell apart: {lost};"
            f" {SETTING}=standard subtracts the column's mean first"
        )
    if normalize == "standard":
        center, scale, *ends = _standard(x, np.arange(len(x)) if train is None else train)
    else:
        make = {"unit": _unit, "pixels": _pixels, "none": _none}.get(normalize, _pixel_scale)
        center, scale = make(x, low, high, normalize)
        ends = [low, high]
    made = partial(np.asarray, dtype=np.float64 if x.dtype == np.float64 else np.float32)
    center, scale = made(center), made(scale)
    of_ends = ((made(end) - center) * scale for end in ends)
    lowest, highest = (np.asarray(end, np.float32) for end in of_ends)
    return Scale(center, scale, lowest, highest, (low, high))


def in_float32(x: Any, scale: Scale) -> Any:
    """What the model sees of examples x [R, ...] in float64, as float32."""

    def seen(part):
        return ((np.asarray(part, np.float64) - scale.center) * scale.scale).astype(np.float32)

    if isinstance(x, (LazyArray, np.memmap)):
        return LazyArray(lambda rows: seen(x[rows]), x.shape, np.float32, None)
    return seen(x)


def id_limits(x: Any, scale: Scale) -> tuple[float, float] | None:
    """The lowest and highest number that the model sees; None if some are not whole numbers."""
    unchanged = np.all(scale.center == 0) and np.all(scale.scale == 1)
    return scale.limits if unchanged and are_whole(x) else None


def _unit(x, low, high, _):
    """8-bit pixels become 0..1; other numbers are taken as they are."""
    if is_pixels(x):
        return 0, 1 / 255
    if is_image(x) and x.dtype.kind in "iu" and not 0 <= low <= high <= 1:
        raise BadInput(
            f"x holds images of integers from {low:g} to {high:g}, which are not 8-bit pixels:"
            f" {SETTING}=standard scales them by the mean and standard deviation of the training"
            f" examples, and {SETTING}=none takes them as they are"
        )
    if is_image(x) and is_of_pixels(low, high):
        raise BadInput(
            f"x holds images of real numbers from {low:g} to {high:g}: {SETTING}=pixels divides"
            f" them by 255, and {SETTING}=none takes them as they are"
        )
    return 0, 1


def _pixels(x, low, high, _):
    """Numbers in 0..255 of any type and shape are divided by 255."""
    if low < 0 or high > 255 or high <= 1:
        raise BadInput(
            f"{SETTING}=pixels divides numbers from 0 to 255 by 255, but those of x are from"
            f" {low:g} to {high:g}; use {SETTING}=unit or standard"
        )
    return 0, 1 / 255


def _none(*_):
    return 0, 1


def _pixel_scale(x, low, high, normalize):
    """The center and scale of a normalization of pixels, whose highest value is 255 or 1."""
    top = 255 if is_pixels(x) else 1
    if normalize in CHANNELS and x.shape[1:][2:] != (3,):
        raise BadInput(f"{SETTING}={normalize} needs color images; {SETTING}=standard fits all")
    if not is_image(x) or low < 0 or high > top:
        raise BadInput(
            f"{SETTING}={normalize} needs images of integers from 0 to 255 or of numbers from 0 to"
            f" 1, but x {x.dtype}{list(x.shape)} is from {low:g} to {high:g}; {SETTING}=standard"
            " fits all numbers"
        )
    if normalize == "half":
        return top / 2, 2 / top
    mean, std = (top * np.array(a, np.float32) for a in CHANNELS[normalize])
    return mean, 1 / std


class Moments(NamedTuple):
    """Statistics of each column of a table, or of each channel of images, in float64."""

    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray


def moments(x: Any, rows: np.ndarray) -> Moments:
    """The statistics of examples `rows` of x [R, ...]; of all numbers together for x [R, H, W]."""
    width = 1 if len(x.shape) == 3 else x.shape[-1]
    size = max(1, PIECE // 8 // example_bytes(x))
    shift = np.asarray(x[rows[:1]], np.float64).reshape(-1, width)[0]  # constants become 0 exactly
    count, total, squares = 0, np.zeros(width), np.zeros(width)
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    for i in range(0, len(rows), size):
        part = np.asarray(x[rows[i : i + size]], np.float64).reshape(-1, width) - shift
        count, total, squares = count + len(part), total + part.sum(0), squares + (part**2).sum(0)
        low, high = np.minimum(low, part.min(0)), np.maximum(high, part.max(0))
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    return Moments(shift + mean, std, shift + low, shift + high)


def _standard(x, train):
    """The mean, 1 / standard deviation, lowest and highest number of each column or channel.

    A constant column gets the scale 0, so that the model always sees 0.
    """
    made = moments(x, train)
    varies = made.std > NOISE * np.maximum(np.abs(made.low), np.abs(made.high))
    inverse = np.divide(1, made.std, out=np.zeros_like(made.std), where=varies)
    return made.mean, inverse, made.low, made.high


# What a run says


def described(x: Any, normalize: str, scale: Scale) -> str:
    """One line on what the examples are and how they are scaled."""
    shape = "x".join(map(str, x.shape[1:]))
    low, high = scale.limits
    what = f"images of {shape}" if is_image(x) else f"rows of {shape}"
    if is_pixels(x):
        numbers = "8-bit pixels"
    else:
        kind = "integers" if x.dtype.kind in "iu" else "numbers"
        numbers = f"{kind} from {low:g} to {high:g}"
    done = WORDS["none"] if normalize == "unit" and not is_pixels(x) else WORDS[normalize]
    return f"examples: {what}, {numbers}, {done} (data.normalize={normalize})"


def remark(x: Any, normalize: str, scale: Scale, train: np.ndarray) -> str:
    """A warning about numbers on which a model can hardly be trained; "" if there is none.

    train: the numbers of the training examples; a sample of them is examined.

    Raises BadInput if rows of whole numbers may be either the pixels of an image or columns.
    """
    if is_pixels(x) and normalize != "none":
        return "" if normalize == "standard" else _dark(x)
    if normalize not in ("unit", "none"):
        return ""
    count = min(len(train), SAMPLE, max(1, PIECE // example_bytes(x)))
    sample = train[np.linspace(0, len(train) - 1, count).astype(int)]
    low, high = scale.limits
    may_be_pixels = not is_image(x) and is_of_pixels(low, high)
    if normalize == "unit" and may_be_pixels and are_whole(x[sample]):
        raise BadInput(
            f"the rows of x hold integers from {low:g} to {high:g}, which may be pixels or columns:"
            f" {SETTING}=pixels divides them by 255, {SETTING}=standard scales each column, and"
            f" {SETTING}=none takes them as they are"
        )
    return _unlike(x, moments(x, sample))


STANDARD = f"{SETTING}=standard scales them by the training examples"


def _unlike(x, columns):
    """A warning if columns or channels are too large or too unlike for an MLP; "" otherwise."""
    size = np.sqrt(columns.mean**2 + columns.std**2)
    norm = np.sqrt((size**2).mean() * np.prod(x.shape[1:]))
    varying = columns.std[columns.std > 0]
    is_large = size.max() > LARGE and norm > LONG
    is_unlike = len(varying) and varying.max() > max(UNLIKE * varying.min(), 1)  # not rare words
    if not (is_large or is_unlike):
        return ""
    what = "channels" if is_image(x) else "columns"
    return (
        f"the {what} have large or unlike scales, root mean squares from {size.min():.3g} to"
        f" {size.max():.3g}, which can keep an MLP at the majority class; {STANDARD}"
    )


def _dark(x):
    """A warning if no pixel of some images in memory is above a half; "" otherwise."""
    if isinstance(x, LazyArray):
        return ""
    some = np.asarray(x[np.linspace(0, len(x) - 1, min(len(x), 256)).astype(int)])
    if (top := int(some.max())) > PLAINLY:
        return ""
    return f"dark images: no pixel of {len(some)} of them exceeds {top} of 255; {STANDARD}"
