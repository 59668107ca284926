"""What every data source returns: NumPy arrays in one flat pool."""

from typing import NamedTuple

import numpy as np


class Dataset(NamedTuple):
    """R examples. Images stay uint8; they become floats when a batch is fetched."""

    x: np.ndarray  # [R, H, W, channels] uint8, or [R, ...] float32
    y: np.ndarray  # [R] int32, 0 .. len(classes) - 1
    domain: np.ndarray  # [R] int32, 0 .. len(domains) - 1
    test: np.ndarray  # [R] bool
    classes: tuple[str, ...]
    domains: tuple[str, ...]
