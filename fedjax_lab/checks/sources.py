"""The check of a data source."""

from collections.abc import Callable

import numpy as np

from fedjax_lab.checks.failure import CheckFailed, check, section
from fedjax_lab.data.dataset import TYPES, Dataset
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import load_data

EXAMPLES = 64  # of a lazy source, that are read


def check_source(source: str | Callable, **settings) -> Dataset:
    """Raises CheckFailed unless the function gives a data set as the simulator expects it.

    source: (*, settings) -> Dataset. Returns what it gave.
    """
    try:
        dataset, again = (load_data(section("data", source, settings)) for _ in range(2))
    except BadInput as error:
        raise CheckFailed(str(error)) from error
    _check_examples(dataset.x)
    _check_names("classes", dataset.classes)
    _check_names("domains", dataset.domains)
    test = np.asarray(dataset.test)
    check(test.dtype == bool, f"test must be flags (bool), got {test.dtype}")
    check(not test.all(), "all examples are for testing, none for training")
    count = len(dataset.x)
    rows = np.linspace(0, count - 1, min(count, EXAMPLES)).astype(int)
    check(
        np.array_equal(dataset.x[rows], again.x[rows]) and np.array_equal(dataset.y, again.y),
        "two calls give different examples; a seed of its own must be fixed",
    )
    return dataset


def _check_examples(x):
    images = len(x.shape) == 4 and x.dtype == np.uint8
    check(
        images or x.dtype in map(np.dtype, TYPES[1:]),
        "x must be images [R, H, W, channels] in uint8, or [R, ...] in"
        f" {', '.join(TYPES[1:])}; got {x.dtype}{list(x.shape)}",
    )
    if x.dtype == np.float32:
        some = np.asarray(x[: min(len(x), EXAMPLES)])
        check(bool(np.isfinite(some).all()), "x has values that are not finite")


def _check_names(what, names):
    check(
        len(set(names)) == len(names) and all(isinstance(name, str) for name in names),
        f"{what} must be different names",
    )
