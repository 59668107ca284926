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
UNCOMPRESSED = ".ppm", ".pgm", ".bmp", ".tif", ".tiff"  # endings, most files of which are


# What is made of a PIL image: its colors, and a square.


def rgb(image):
    """Any PIL image in color; gray ones get three equal channels."""
    return image.convert("RGB")


def gray(image):
    """Any PIL image in shades of gray: the luma of ITU-R 601."""
    return image.convert("L")


def rgb_or_gray(image):
    """As FedBN: an image that has not exactly three channels loses its colors."""
    return rgb(image if len(image.getbands()) == 3 else image.convert("L"))


def stretch(image, size: int):
    """The whole image, its sides scaled one by one: bilinear as torchvision's Resize of an image.

    It is antialiased, as are `crop` and `pad`.
    """
    from PIL import Image

    return image.resize((size, size), Image.Resampling.BILINEAR)


def crop(image, size: int):
    """The largest square in the middle of the image, scaled."""
    from PIL import Image, ImageOps

    return ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)


def pad(image, size: int):
    """The whole image, both sides scaled alike, in the middle of a black square."""
    from PIL import Image, ImageOps

    return ImageOps.pad(image, (size, size), Image.Resampling.BILINEAR)


COLORS: dict[str, Callable] = {"rgb": rgb, "gray": gray}
FITS: dict[str, Callable] = {"stretch": stretch, "crop": crop, "pad": pad}


# Files


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
    files or the labels change. Whoever reads piece by piece takes the attribute `listing`. An x
    that is no LazyArray stays as it is.
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
    fit: Callable = stretch,
) -> dict:
    """A Dataset's arrays x [R, size, size, channels] uint8, y, domain, test.

    There is one split of each kind for a domain. With the arrays comes `files`, the paths of the
    original images. x is lazy: it decodes the images that it is asked for.

    Args:
      name: what is in x is called this in the cache.
      train: the files of each domain for training.
      test: those for tests.
      size: the side of an image in x.
      colors: makes RGB of what PIL has opened, or `gray`.
      remedy: how to get the files, for messages.
      truncated: files that end too early are read as far as they go.
      fit: makes the square image in x of a whole one: `stretch`, `crop` or `pad`.

    Raises:
      BadInput: a file is missing, or, once it is decoded, damaged.
    """
    splits = (*train, *test)
    files = [file for split in splits for file in split.files]

    def read(rows):
        with truncated_allowed() if truncated else contextlib.nullcontext():
            return decode([files[row] for row in rows], size, colors, remedy, fit)

    digest = f"{name}-{size}px-{fingerprint(splits, remedy)}"
    x = LazyArray(read, (len(files), size, size, _channels(colors)), np.uint8, digest)
    made = pooled(x, [split.labels for split in train], [split.labels for split in test])
    return made | {"files": tuple(map(str, files))}


def fingerprint(splits: Sequence[Split], remedy: str) -> str:
    """16 hexadecimal digits that change with the name, size, label or place of any file.

    With the time of a file, too, where images of equal shape have equal sizes (UNCOMPRESSED).
    """
    digest = hashlib.sha256()
    for split in splits:
        digest.update(f"{len(split.files)}\n".encode())
        for file, label in zip(*split, strict=True):
            try:
                described = file.stat()
            except OSError as error:
                raise BadInput(f"{file} cannot be read ({error}): {remedy}") from error
            time = f" {described.st_mtime_ns}" if file.suffix.lower() in UNCOMPRESSED else ""
            digest.update(f"{file.name!r} {described.st_size} {label}{time}\n".encode())
    return digest.hexdigest()[:16]


def decode(
    files: Sequence[Path], size: int, colors: Callable, remedy: str, fit: Callable = stretch
) -> np.ndarray:
    """Images [R, size, size, channels] uint8; the arguments are as those of `arrays`."""

    def square(image):
        return fit(colors(image), size)

    made = np.empty((len(files), size, size, _channels(colors)), np.uint8)
    with ThreadPool() as threads:
        images = threads.imap(lambda file: read(file, square, remedy), files, chunksize=64)
        for row, image in enumerate(images):
            made[row] = np.asarray(image).reshape(made.shape[1:])
    return made


def _channels(colors: Callable) -> int:
    return 1 if colors is gray else 3


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
            if image.mode.startswith(("I", "F")):  # Pillow would cut their values off at 255
                raise ValueError("its pixels have more than 8 bits; save it with 8")
            return colors(image)


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
