"""Image files: decoded and made smaller once, then read from the cache."""

import hashlib
import math
from collections.abc import Callable, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from fedjax_lab.data import safe
from fedjax_lab.data.cache import cache_folder, load, save
from fedjax_lab.data.dataset import pooled
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


def arrays(
    name: str,
    train: Sequence[Split],
    test: Sequence[Split],
    size: int,
    colors: Callable,
    remedy: str,
) -> dict:
    """A Dataset's arrays x [R, size, size, 3] uint8, y, domain, test; one split of each a domain.

    With them `files`, the paths of the original images.

    Kept in $FEDJAX_LAB_CACHE, else in ~/.cache/fedjax_lab, as `name`, until names or sizes of
    files or the labels change. `colors` makes RGB of what PIL has opened. Raises BadInput for a
    file that is missing or damaged.
    """
    splits = (*train, *test)
    files = [file for split in splits for file in split.files]
    kept = cache_folder() / f"{name}-{size}px-{fingerprint(splits, remedy)}.npz"
    made = load(kept)
    if made is None:
        x = decode(files, size, colors, remedy)
        made = pooled(x, [split.labels for split in train], [split.labels for split in test])
        save(kept, made)
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
        shown = tqdm(images, "decoding", len(files), unit=" images", delay=2)
        for row, image in enumerate(shown):
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


def rgb(image):
    """Any PIL image in color; gray ones get three equal channels."""
    return image.convert("RGB")


def rgb_or_gray(image):
    """As FedBN: an image that has not exactly three channels loses its colors."""
    return rgb(image if len(image.getbands()) == 3 else image.convert("L"))
