"""Converts examples for a finished run to the scale of the run's data set, or refuses them.

The rule is that of `normalize`: the same picture may be integers in 0..255 or real numbers in 0..1.
Columns of a table are compared with those of the training examples.
"""

from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data.normalize import (
    Moments,
    Scale,
    are_whole,
    check_axes,
    in_float32,
    is_image,
    is_of_pixels,
    is_pixels,
)
from fedjax_lab.data.precision import check_unmasked
from fedjax_lab.errors import BadInput

FEW = 8  # rows; the mean of fewer rows of a table says too little
FAR = 4.0  # standard deviations between the means of most columns that are plainly another scale
NEAR = 1.0  # the same if the given columns look standardized


class Known(NamedTuple):
    """Facts about the examples of a run."""

    x: Any  # all of them, after `normalize.as_meant`
    limits: tuple[float, float]  # the lowest and the highest number; 0 and 255 of 8-bit pixels
    columns: Moments | None  # of the training examples, if they are rows of real numbers
    scale: Scale | None = None  # of examples in float64, which are scaled here; None: on the device


def like(given: Any, known: Known) -> np.ndarray:
    """The given examples [N, ...] as the run's federations hold examples.

    Raises BadInput if their shape differs, if they are not finite, or if they plainly have a scale
    from which the run's scale does not follow.
    """
    check_unmasked("the array of examples", given)
    x = np.asarray(given)
    if x.dtype.kind not in "buif":
        raise BadInput(f"examples must be numbers, not {x.dtype}")
    x = shaped(x, known.x.shape[1:])
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise BadInput("the examples have NaN or infinite values")
    if x.dtype == known.x.dtype and is_pixels(x):
        return x
    low, high = float(x.min()), float(x.max())
    if is_image(x):
        x = x * np.float32(_factor(x.dtype.kind, low, high, known))
    else:
        x = _rows(x, low, high, known)
    return x if known.scale is None else in_float32(x, known.scale)


def shaped(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The examples [N, *shape]; gray images [N, H, W] get their channel axis."""
    if x.shape[1:] == shape[:-1] and len(shape) == 3 and shape[-1] == 1:
        x = x[..., None]
    if x.shape[1:] != shape or not len(x):
        if len(x.shape) == len(shape) + 1 == 4:
            check_axes(x.shape)
        wanted = ", ".join(map(str, ("N", *shape)))
        raise BadInput(
            f"examples must be a non-empty array of shape [{wanted}], as in the run's dataset,"
            f" not {list(x.shape)}"
        )
    return x


def _factor(kind, low, high, known):
    """The factor from images in low..high to the range of the run's images."""
    of_run, to_run = known.limits
    of_pixels = is_of_pixels(of_run, to_run)
    if of_pixels and 0 <= low and high <= 255:
        return 255 if high <= 1 else 1
    if of_run >= 0 and to_run <= 1 and 0 <= low and (high > 2 or kind in "ui") and high <= 255:
        return 1 / 255 if high > 1 else 1
    span = (to_run - of_run) / 2
    is_tiny = to_run > 255 and 0 < high <= 1
    if not (of_pixels or is_tiny) and of_run - span <= low and high <= to_run + span:
        return 1
    raise BadInput(
        f"the examples are images of numbers from {low:g} to {high:g}, but those of the run's"
        f" dataset are from {of_run:g} to {to_run:g}; bring them to that range"
    )


def _rows(x, low, high, known):
    """Rows of numbers, unchanged. Raises BadInput if they are clearly on another scale."""
    of_run, to_run = known.limits
    if known.columns is None:
        if not are_whole(x) or low < min(of_run, 0) or high > to_run:
            raise BadInput(
                f"the run's dataset has rows of integers from {of_run:g} to {to_run:g}, such as"
                f" token ids, but the examples are {x.dtype} from {low:g} to {high:g}"
            )
        return x
    varying = np.flatnonzero(known.columns.std)
    mean, std = x.mean(0, np.float64)[varying], x.std(0, np.float64)[varying]
    apart = np.abs(mean - known.columns.mean[varying]) / known.columns.std[varying]
    standard = np.mean((np.abs(mean) < 0.5) & (0.5 < std) & (std < 2)) > 0.75
    if len(x) >= FEW and len(varying) and np.median(apart) > (NEAR if standard else FAR):
        column = varying[apart.argmax()]
        raise BadInput(
            f"the columns are on another scale than those of the run: the mean of column {column}"
            f" is {x[:, column].mean():.4g}, but {known.columns.mean[column]:.4g} in training; give"
            " columns as they are in the run's dataset, which scales them itself"
        )
    return x
