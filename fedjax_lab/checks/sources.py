"""The check of a data source."""

from collections.abc import Callable

import numpy as np

from fedjax_lab.checks.failure import CheckFailed, check, section
from fedjax_lab.data.dataset import Dataset
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
    count = len(dataset.x)
    for name in ("y", "domain", "test"):
        a = np.asarray(getattr(dataset, name))
        check(
            a.shape == (count,),
            f"{name} must have one entry for each of the {count} examples, got {list(a.shape)}",
        )
    _check_examples(dataset.x)
    for name, labels, of in (("classes", dataset.y, "y"), ("domains", dataset.domain, "domain")):
        _check_names(name, getattr(dataset, name), np.asarray(labels), of)
    test = np.asarray(dataset.test)
    check(test.dtype == bool, f"test must be flags (bool), got {test.dtype}")
    check(not test.all(), "all examples are for testing, none for training")
    rows = np.linspace(0, count - 1, min(count, EXAMPLES)).astype(int)
    check(
        np.array_equal(dataset.x[rows], again.x[rows]) and np.array_equal(dataset.y, again.y),
        "two calls give different examples; a seed of its own must be fixed",
    )
    return dataset


def _check_examples(x):
    images = len(x.shape) == 4 and x.dtype == np.uint8
    check(
        images or x.dtype in (np.int8, np.float32),
        "x must be images [R, H, W, channels] in uint8, or [R, ...] in int8 or float32; got"
        f" {x.dtype}{list(x.shape)}",
    )
    if x.dtype == np.float32:
        some = np.asarray(x[: min(len(x), EXAMPLES)])
        check(bool(np.isfinite(some).all()), "x has values that are not finite")


def _check_names(name, names, numbers, of):
    check(
        len(set(names)) == len(names) and all(isinstance(n, str) for n in names),
        f"{name} must be different names",
    )
    check(
        numbers.dtype.kind in "iu" and 0 <= numbers.min() <= numbers.max() < len(names),
        f"{of} must be whole numbers from 0 to {len(names) - 1}, which number the {name}",
    )
