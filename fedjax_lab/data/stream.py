"""Reads the examples of a block of rounds from memory or files."""

import numpy as np

from fedjax_lab.data.lazy import LazyArray


def fill(made: np.ndarray, x: np.ndarray | LazyArray, rows: np.ndarray) -> None:
    """Writes the examples of rows [n], flattened and in x's type, to the array `made` [n, D].

    A row of -1 is padding and becomes zeros. Raises IndexError for a row that does not exist.
    """
    real = rows >= 0
    if rows.size and not -1 <= rows.min() <= rows.max() < len(x):
        raise IndexError(f"rows {rows.min()} to {rows.max()} are not among {len(x)} examples")
    if isinstance(x, LazyArray) or not x.flags.c_contiguous:
        made[real] = x[rows[real]].reshape(-1, made.shape[1])
    else:  # without an intermediate copy, and other threads can run meanwhile
        np.take(np.asarray(x).reshape(len(x), -1), rows, 0, out=made, mode="clip")
    made[~real] = 0
