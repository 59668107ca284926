"""Declares a data source: the limits of its settings, and the remedy for its files.

@source("name the folder of the files with --config.data.folder", size=within(8, 512))
def toys(*, folder: str = "", size: int = 32) -> Dataset:
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.data.safe import remedied
from fedjax_lab.errors import check_choice, check_range

Check = Callable[[str, Any], object]  # (key, value): raises BadInput for an invalid value


def within(low: float, high: float = math.inf) -> Check:
    """The check that a setting is from `low` to `high`."""
    return functools.partial(check_range, low=low, high=high)


def one_of(choices: Iterable[str]) -> Check:
    """The check that a setting is one of these words."""
    return functools.partial(check_choice, valid=choices)


SIDE = within(8, 512)  # of images, in pixels


def source(remedy: str = "", /, **limits: Check) -> Callable[[Callable], Callable[..., Dataset]]:
    """Decorates a data source, so that its settings are checked before anything is read.

    remedy: what to do if a file is missing or damaged, for messages; also while a lazy x is read.
    limits: the check of each setting, such as `within(8, 512)` or `errors.check_positive`.
    """

    def decorate(read: Callable[..., Dataset]) -> Callable[..., Dataset]:
        @functools.wraps(read)
        def checked(**settings):
            for key, check in limits.items():
                if key in settings:
                    check(f"data.{key}", settings[key])
            with remedied(remedy):
                dataset = read(**settings)
            if isinstance(dataset.x, LazyArray):
                dataset.x.read = remedied(remedy)(dataset.x.read)
            return dataset

        return checked

    return decorate
