"""Reads MATLAB files; the sizes that they declare are checked before any content is read."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedjax_lab.data import safe

WIDEST = 8  # bytes of the largest element


def load(path: Path, names: Collection[str]) -> dict[str, Any]:
    """The variables of these names that the file has, by name.

    Raises ValueError if a variable declares more elements than the file can hold, TooLargeError if
    it does not fit in memory, and any error of SciPy.
    """
    from scipy.io import loadmat, whosmat

    stored = path.stat().st_size
    with safe.opened(path) as file:
        claims = [(math.prod(shape), kind) for name, shape, kind in whosmat(file) if name in names]
    for count, kind in claims:
        safe.check_claim(count, stored)
        safe.check_memory(count if kind in ("int8", "uint8", "logical") else WIDEST * count)
    with safe.opened(path) as file:
        return loadmat(file, variable_names=names)
