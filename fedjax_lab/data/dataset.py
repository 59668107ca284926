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


def of_one_domain(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    classes: tuple[str, ...],
    name: str,
) -> Dataset:
    """Images [., H, W, channels] and labels [.] of both splits in one pool, training first."""
    x, y = (np.concatenate(pair) for pair in zip(train, test, strict=True))
    mask = np.arange(len(y)) >= len(train[1])
    return Dataset(x, y.astype(np.int32), np.zeros(len(y), np.int32), mask, classes, (name,))
