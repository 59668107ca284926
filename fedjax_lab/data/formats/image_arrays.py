"""Checks the arrays of images and labels in a published file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.errors import BadInput


def images_of(where: Path, x: Any, shapes: Sequence[tuple[int, ...]], remedy: str) -> np.ndarray:
    """The images [N, ...] uint8 in C order; those of shape [N, H, W] get a channel axis.

    where: the file, for messages.
    shapes: the possible shapes of an image.

    Raises BadInput if the array is empty, or of another type or shape.
    """
    x = array_of(where, x, remedy)
    x = x[..., None] if x.ndim == 3 else x
    if x.dtype != np.uint8 or x.shape[1:] not in shapes or not len(x):
        wanted = " or ".join(f"[N, {', '.join(map(str, shape))}]" for shape in shapes)
        what = f"{x.dtype} {list(x.shape)}, not uint8 {wanted}"
        raise BadInput(f"{where}: its images are {what}: {remedy}")
    return np.ascontiguousarray(x)


def labels_of(where: Path | str, y: Any, count: int, valid: range, remedy: str) -> np.ndarray:
    """The labels [count] int32. Raises BadInput if there are not as many, or one is not valid."""
    y = array_of(where, y, remedy)
    if y.dtype.kind not in "uif" or y.size != count:
        what = f"{y.dtype} {list(y.shape)}, not {count} numbers"
        raise BadInput(f"{where}: its labels are {what}: {remedy}")
    y = y.ravel()
    bad = ~np.isin(y, valid)
    if bad.any():
        what = f"label {y[bad][0]} in row {bad.argmax()} is not in {valid[0]} .. {valid[-1]}"
        raise BadInput(f"{where}: {what}: {remedy}")
    return y.astype(np.int32)


def array_of(where: Path | str, values: Any, remedy: str) -> np.ndarray:
    """The values as an array. Raises BadInput if they are lists of different lengths."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise BadInput(f"{where} holds something else than arrays: {remedy}") from error
