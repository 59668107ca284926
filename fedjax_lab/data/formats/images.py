"""Image files, decoded on demand, or decoded once and then read from the cache."""

import contextlib
import functools
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import leaks, safe
from fedjax_lab.data.cache import cache_folder, load, save
from fedjax_lab.data.dataset import Dataset, pooled
from fedjax_lab.data.declared import source
from fedjax_lab.data.lazy import LazyArray, read_all

PIXEL = 4  # bytes per pixel while an image is read
GRAY = ("1", "L", "LA")  # PIL's modes of images without color
COLORED = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
UNCOMPRESSED = ".ppm", ".pgm", ".bmp", ".tif", ".tiff"  # extensions of mostly uncompressed files


# Conversions of a PIL image: of its colors, and to a square.


def rgb(image):
    """Converts any PIL image to color; gray images get three equal channels."""
    return image.convert("RGB")


def gray(image):
    """Converts any PIL image to gray: the luma of ITU-R BT.601."""
    return image.convert("L")


def rgb_or_gray(image):
    """Converts as FedBN does: images without exactly three channels become gray."""
    return rgb(image if len(image.getbands()) == 3 else image.convert("L"))


def upright(image):
    """Turns a photograph as its EXIF orientation says, if it has one."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def stretch(image, size: int):
    """Resizes the whole image to a square, bilinearly as torchvision's Resize does for PIL images.

    The result is antialiased, as in `crop` and `pad`.
    """
    from PIL import Image

    return image.resize((size, size), Image.Resampling.BILINEAR)


def crop(image, size: int):
    """Crops the largest centered square of the image and resizes it."""
    from PIL import Image, ImageOps

    return ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)


def pad(image, size: int):
    """Resizes the whole image, keeping its proportions, and centers it in a black square."""
    from PIL import Image, ImageOps

    longest = max(image.size)  # the shorter side has at least one pixel, also in Pillow before 13
    sides = [max(1, round(side / longest * size)) for side in image.size]
    return ImageOps.pad(image.resize(sides, Image.Resampling.BILINEAR), (size, size))


COLORS: dict[str, Callable] = {"rgb": rgb, "gray": gray}
FITS: dict[str, Callable] = {"stretch": stretch, "crop": crop, "pad": pad}


class Look(NamedTuple):
    """How image files are converted to the images of a dataset."""

    size: int  # of a side, in pixels
    colors: Callable = rgb  # converts a PIL image to RGB; or `gray`
    fit: Callable = stretch  # (PIL image, size) -> square
    name: str = ""  # in the names of cache files; empty for RGB and `stretch`
    truncated: bool = False  # whether truncated files are read as far as possible

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an image."""
        return self.size, self.size, 1 if self.colors is gray else 3


# Files


Split = list[tuple[Path, int]]  # the image files of a split, with their labels


def class_images(folders: Sequence[Path], endings: Sequence[str], required: bool = True) -> Split:
    """The images in the folder of each class, ordered by class and name.

    endings: extensions of the images in lower case.
    required: whether a class without images is an error.
    """
    each = [images_in(folder, endings) for folder in folders]
    if required and [] in each:
        what = f"has no images ({', '.join(endings)}), but is a class folder"
        raise safe.Fault(f"{folders[each.index([])]} {what}")
    return [(file, label) for label, images in enumerate(each) for file in images]


def images_in(folder: Path, endings: Sequence[str]) -> list[Path]:
    """The image files of a folder, sorted by name."""
    paths = (Path(entry.path) for entry in _visible(folder))
    return [path for path in paths if path.suffix.lower() in endings]


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted by name."""
    return [Path(entry.path) for entry in _visible(folder) if entry.is_dir()]


def _visible(folder: Path) -> list[os.DirEntry]:
    """The entries of a folder, sorted by name, without hidden files and macOS's archive folders."""
    if not folder.is_dir():
        return []
    with safe.reading(folder, "make it readable"), os.scandir(folder) as entries:
        shown = (entry for entry in entries if not entry.name.startswith((".", "__MACOSX")))
        return sorted(shown, key=lambda entry: entry.name)


def decoded(listing: Callable[..., Dataset]) -> Callable[..., Dataset]:
    """Decorates a data source that lists images, so that it decodes all of them at once.

    The x of `listing` is lazy, like that of `image_dataset`; any other x is left unchanged. The
    decoded arrays are cached in $FEDJAX_LAB_CACHE, else in ~/.cache/fedjax_lab, until a file or a
    label changes. To read piece by piece, use the result's attribute `listing`.
    """

    @functools.wraps(listing)
    def source(**settings):
        dataset = listing(**settings)
        if not isinstance(dataset.x, LazyArray):
            leaks.report(dataset)
            return dataset
        version = f"-{versions(dataset.files)}" if dataset.files else ""
        cached = cache_folder() / f"{dataset.x.digest}{version}.npz"
        made = load(cached)
        if made is None:
            made = {"x": read_all(dataset.x, "decoding")}
            save(cached, made)
        dataset = dataset._replace(x=made["x"])
        if not dataset.test_is_drawn:
            leaks.report(dataset)
        return dataset

    source.listing = listing  # type: ignore[attr-defined]
    return source


def image_source(remedy: str = "", /) -> Callable:
    """As `declared.source` and `decoded`."""
    return lambda listing: decoded(source(remedy)(listing))


def image_dataset(
    name: str,
    train: Sequence[Split],
    test: Sequence[Split],
    look: Look,
    classes: Sequence[str],
    domains: Sequence[str],
) -> Dataset:
    """The dataset of image files, x [R, size, size, channels] uint8; x decodes them on demand.

    Args:
      name: the name of the images in the cache.
      train: the training files of each domain.
      test: the test files of each domain.
      look: how image files are converted to x.
      classes: the names of the labels.
      domains: the names of the domains.

    Raises:
      Fault: a file is missing or (when it is decoded) damaged.
    """
    splits = (*train, *test)
    files = [file for split in splits for file, _ in split]

    def read(rows):
        with truncated_allowed() if look.truncated else contextlib.nullcontext():
            return decode([files[row] for row in rows], look)

    digest = f"{name}{look.name}-{look.size}px-{fingerprint(splits)}"
    x = LazyArray(read, (len(files), *look.shape), np.uint8, digest)
    made = pooled(x, *([[y for _, y in split] for split in part] for part in (train, test)))
    paths = tuple(map(str, files))
    return Dataset(**made, classes=tuple(classes), domains=tuple(domains), files=paths)


def fingerprint(splits: Sequence[Split]) -> str:
    """16 hexadecimal digits that change with the name, size, label or position of any file.

    For UNCOMPRESSED files, whose size depends only on the shape of the image, they also change with
    the modification time.
    """
    digest = hashlib.sha256()
    for split in splits:
        digest.update(f"{len(split)}\n".encode())
        for file, label in split:
            with safe.reading(file):
                described = file.stat()
            time = f" {described.st_mtime_ns}" if file.suffix.lower() in UNCOMPRESSED else ""
            digest.update(f"{file.name!r} {described.st_size} {label}{time}\n".encode())
    return digest.hexdigest()[:16]


def versions(files: Sequence[str | Path]) -> str:
    """16 hexadecimal digits that change with the path of any file, and whenever one is written.

    The time of the last change of a file's status is used too: a program can set the modification
    time, but not that one.
    """
    digest = hashlib.sha256()
    for file in files:
        with safe.reading(file, "restore it"):
            state = os.stat(file)
        numbers = f"{state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}"
        digest.update(f"{os.path.abspath(file)!r} {numbers}\n".encode())
    return digest.hexdigest()[:16]


def decode(files: Sequence[Path], look: Look) -> np.ndarray:
    """The images [R, size, size, channels] uint8 in these files."""

    def square(file):
        return read(file, lambda image: look.fit(look.colors(image), look.size))

    return in_threads(square, files, look.shape)


def in_threads(picture: Callable, items: Sequence, shape: tuple[int, ...]) -> np.ndarray:
    """The images [R, *shape] uint8 that `picture` makes of each item, in parallel."""
    made = np.empty((len(items), *shape), np.uint8)
    with ThreadPool() as threads:
        for row, image in enumerate(threads.imap(picture, items, chunksize=64)):
            made[row] = np.asarray(image).reshape(shape)
    return made


def read(file: Path, colors: Callable, remedy: str = ""):
    """Opens an image file and applies `colors` to it. Raises BadInput if that is not possible."""
    from PIL import Image

    with safe.reading(file, remedy, "is damaged or not an image"):
        safe.check_regular(file)
        with Image.open(file) as image:
            check_image(image, file.stat().st_size)
            return colors(image)


def check_image(image, stored: int) -> None:
    """Raises an error if a PIL image of `stored` bytes cannot be decoded as it is meant."""
    pixels = math.prod(image.size)
    if image.format == "PNG":  # a pixel has at least one bit
        safe.check_claim(pixels // 8, stored)
    safe.check_memory(PIXEL * pixels)
    if image.mode not in (*GRAY, *COLORED):  # Pillow would clip values above 255
        raise ValueError(
            f"its pixels have PIL's mode {image.mode}, which is not supported; save it with 8 bits"
            " for each channel"
        )


@contextlib.contextmanager
def truncated_allowed() -> Iterator[None]:
    """Inside the context, truncated image files are read as far as possible.

    Pillow has one switch for all threads; its previous value is restored at the end.
    """
    from PIL import ImageFile

    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
