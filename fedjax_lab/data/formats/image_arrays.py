"""Checks the arrays of images and labels in a published file."""

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.data.safe import Fault


def images_of(where: Path, x: Any, *shapes: tuple[int, ...]) -> np.ndarray:
    """The images [N, ...] uint8 in C order; those of shape [N, H, W] get a channel axis.

    where: the file, for messages.
    shapes: the possible shapes of an image.

    Raises a Fault if the array is empty, or of another type or shape.
    """
    x = array_of(where, x)
    x = x[..., None] if x.ndim == 3 else x
    if x.dtype != np.uint8 or x.shape[1:] not in shapes or not len(x):
        wanted = " or ".join(f"[N, {', '.join(map(str, shape))}]" for shape in shapes)
        raise Fault(f"{where}: its images are {x.dtype} {list(x.shape)}, not uint8 {wanted}")
    return np.ascontiguousarray(x)


def labels_of(where: Path | str, y: Any, count: int, valid: range) -> np.ndarray:
    """The labels [count] int32. Raises a Fault if there are not as many, or one is not valid."""
    y = array_of(where, y)
    if y.dtype.kind not in "uif" or y.size != count:
        raise Fault(f"{where}: its labels are {y.dtype} {list(y.shape)}, not {count} numbers")
    y = y.ravel()
    bad = ~np.isin(y, valid)
    if bad.any():
        what = f"label {y[bad][0]} in row {bad.argmax()}"
        raise Fault(f"{where}: {what} is not in {valid[0]} .. {valid[-1]}")
    return y.astype(np.int32)


def array_of(where: Path | str, values: Any) -> np.ndarray:
    """The values as an array. Raises a Fault if they are lists of different lengths."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise Fault(f"{where} holds something else than arrays") from error
