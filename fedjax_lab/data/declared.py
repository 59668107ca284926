"""Declares a data source: its settings are checked, and errors about its files get a remedy.

@source("name the folder of the files with --config.data.folder")
def toys(*, folder: str = "", size: Side = 32) -> Dataset:
"""

import functools
from collections.abc import Callable
from typing import Annotated

from fedjax_lab import ranges
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.data.safe import remedied
from fedjax_lab.ranges import Within

SIDE = Within(8, 512)  # of images, in pixels
Side = Annotated[int, SIDE]


def source(remedy: str = "", /) -> Callable[[Callable], Callable[..., Dataset]]:
    """Decorates a data source, so that its settings are checked before anything is read.

    remedy: what to do if a file is missing or damaged, for messages; also while a lazy x is read.
    """

    def decorate(read: Callable[..., Dataset]) -> Callable[..., Dataset]:
        @ranges.checked("data")
        @functools.wraps(read)
        def checked(**settings):
            with remedied(remedy):
                dataset = read(**settings)
            if isinstance(dataset.x, LazyArray):
                dataset.x.read = remedied(remedy)(dataset.x.read)
            return dataset

        return checked

    return decorate
