"""The check of a data source."""

from collections.abc import Callable

import numpy as np

from fedjax_lab import defaults
from fedjax_lab.data.dataset import TYPES, Dataset
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.experiment import load_data
from fedjax_lab.testing.failure import CheckFailed, check, section

EXAMPLES = 64  # examples that are read from a lazy source


@defaults.restored()
def check_source(source: str | Callable, **settings) -> Dataset:
    """Raises CheckFailed unless the function returns a valid dataset. Returns that dataset.

    source: (*, settings) -> Dataset; or the name of a data source, or a reference.
    **settings: values that replace the defaults of the source's settings.
    """
    try:
        dataset, again = (load_data(section("data", source, settings)) for _ in range(2))
    except BadInput as error:
        raise CheckFailed(str(error)) from error
    _check_examples(dataset.x)
    _check_names("classes", dataset.classes)
    _check_names("domains", dataset.domains)
    _check_names("users", dataset.users)
    test = np.asarray(dataset.test)
    check(test.dtype == bool, f"test must be flags (bool), got {test.dtype}")
    check(not test.all(), "all examples are test examples, none are for training")
    count = len(dataset.x)
    rows = np.linspace(0, count - 1, min(count, EXAMPLES)).astype(int)
    check(
        np.array_equal(dataset.x[rows], again.x[rows]) and np.array_equal(dataset.y, again.y),
        "two calls return different examples; the source must use a fixed seed",
    )
    return dataset


def _check_examples(x):
    check(
        x.dtype in map(np.dtype, TYPES),
        "x must be images [R, H, W] or [R, H, W, channels] in uint8, or [R, ...] in"
        f" {', '.join(TYPES[1:])}; got {x.dtype}{list(x.shape)}",
    )
    if x.dtype == np.float32:
        some = np.asarray(x[: min(len(x), EXAMPLES)])
        check(bool(np.isfinite(some).all()), "x has non-finite values")


def _check_names(what, names):
    check(
        len(set(names)) == len(names) and all(isinstance(name, str) for name in names),
        f"{what} must be different names",
    )
