"""Image files: listed without being decoded, or decoded once and then read from the cache."""

import contextlib
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.cache import cache_folder, load, save
from fedjax_lab.data.dataset import Dataset, pooled
from fedjax_lab.data.lazy import LazyArray, read_all
from fedjax_lab.errors import BadInput

PIXEL = 4  # bytes of a pixel, while an image is read


class Split(NamedTuple):
    """The image files of a split and their labels."""

    files: list[Path]
    labels: list[int]


def check_size(size: int) -> None:
    """BadInput for a side of the pictures, in pixels, that makes no sense."""
    if not 8 <= size <= 512:
        raise BadInput(f"data.size is {size}: from 8 to 512 pixels")


def decoded(listing: Callable[..., Dataset]) -> Callable[..., Dataset]:
    """A data source that decodes all images at once, from one whose x is that of `arrays`.

    Where x is no lazy array, nothing is left to be decoded.
    The result is kept in $FEDJAX_LAB_CACHE, else in ~/.cache/fedjax_lab, until names or sizes of
    files or the labels change. Whoever reads piece by piece takes the attribute `listing`.
    """

    @functools.wraps(listing)
    def source(**settings):
        dataset = listing(**settings)
        if not isinstance(dataset.x, LazyArray):
            return dataset
        kept = cache_folder() / f"{dataset.x.digest}.npz"
        made = load(kept)
        if made is None:
            x = read_all(dataset.x, "decoding")
            made = {"x": x, "y": dataset.y, "domain": dataset.domain, "test": dataset.test}
            save(kept, made)
        return dataset._replace(**made)

    source.listing = listing  # type: ignore[attr-defined]
    return source


def arrays(
    name: str,
    train: Sequence[Split],
    test: Sequence[Split],
    size: int,
    colors: Callable,
    remedy: str,
    truncated: bool = False,
) -> dict:
    """A Dataset's arrays x [R, size, size, 3] uint8, y, domain, test; one split of each a domain.

    With them `files`, the paths of the original images. x is lazy: it decodes the images that it is
    asked for.

    Args:
      name: what is in x is called this in the cache.
      train: the files of each domain for training.
      test: those for tests.
      size: the side of an image in x.
      colors: makes RGB of what PIL has opened.
      remedy: how to get the files, for messages.
      truncated: files that end too early are read as far as they go.

    Raises:
      BadInput: a file is missing, or, once it is decoded, damaged.
    """
    splits = (*train, *test)
    files = [file for split in splits for file in split.files]

    def read(rows):
        with truncated_allowed() if truncated else contextlib.nullcontext():
            return decode([files[row] for row in rows], size, colors, remedy)

    digest = f"{name}-{size}px-{fingerprint(splits, remedy)}"
    x = LazyArray(read, (len(files), size, size, 3), np.uint8, digest)
    made = pooled(x, [split.labels for split in train], [split.labels for split in test])
    return made | {"files": tuple(map(str, files))}


def fingerprint(splits: Sequence[Split], remedy: str) -> str:
    """16 hexadecimal digits that change with the name, size, label or place of any file."""
    digest = hashlib.sha256()
    for split in splits:
        digest.update(f"{len(split.files)}\n".encode())
        for file, label in zip(*split, strict=True):
            try:
                size = file.stat().st_size
            except OSError as error:
                raise BadInput(f"{file} cannot be read ({error}): {remedy}") from error
            digest.update(f"{file.name!r} {size} {label}\n".encode())
    return digest.hexdigest()[:16]


def decode(files: Sequence[Path], size: int, colors: Callable, remedy: str) -> np.ndarray:
    """Images [R, size, size, 3] uint8, filtered bilinearly as torchvision's Resize of an image."""
    made = np.empty((len(files), size, size, 3), np.uint8)
    with ThreadPool() as threads:
        images = threads.imap(lambda file: _image(file, size, colors, remedy), files, chunksize=64)
        for row, image in enumerate(images):
            made[row] = image
    return made


def read(file: Path, colors: Callable, remedy: str):
    """A file's PIL image, with what `colors` makes of it; BadInput where that is impossible."""
    from PIL import Image

    with safe.reading(file, remedy, "is damaged or no image"):
        safe.check_regular(file)
        with Image.open(file) as image:
            pixels = math.prod(image.size)
            if image.format == "PNG":  # a pixel has one bit at least
                safe.check_claim(pixels // 8, file.stat().st_size)
            safe.check_memory(PIXEL * pixels)
            return colors(image)


def _image(file: Path, size: int, colors: Callable, remedy: str) -> np.ndarray:
    from PIL import Image

    image = read(file, colors, remedy)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))


@contextlib.contextmanager
def truncated_allowed() -> Iterator[None]:
    """Inside, images whose files end too early are read as far as they go.

    Pillow has one switch for all threads; on leaving it is as before.
    """
    from PIL import ImageFile

    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def rgb(image):
    """Any PIL image in color; gray ones get three equal channels."""
    return image.convert("RGB")


def rgb_or_gray(image):
    """As FedBN: an image that has not exactly three channels loses its colors."""
    return rgb(image if len(image.getbands()) == 3 else image.convert("L"))
