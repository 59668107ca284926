"""Images that a data set stores as encoded image files; they are decoded on demand."""

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from fedjax_lab.data import safe
from fedjax_lab.data.formats.images import GRAY, check_image, check_size, in_threads, upright
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.errors import BadInput, check_choice

PIECE = 1000  # images that are read at a time
COLORS = ("auto", "rgb", "gray")


class Encoded(NamedTuple):
    """The bytes of R image files."""

    fetch: Callable[[np.ndarray], Sequence[bytes]]  # row numbers [n] -> the files' bytes
    total: int  # R
    where: str  # the data set, for messages
    remedy: str  # how to obtain it again, for messages


class Form(NamedTuple):
    """The common form of all decoded images."""

    width: int
    height: int
    mode: str  # PIL's mode: "L" (gray) or "RGB"
    resized: bool
    all_gray: bool  # whether a color image is an error


def check_form(size: int, color: str) -> None:
    """Raises BadInput for values of config.data.size and config.data.color that are not valid."""
    if size:
        check_size(size)
    check_choice("data.color", color, COLORS)


def pictures(encoded: Encoded, size: int, color: str, digest: str) -> LazyArray:
    """The images [R, H, W, channels] uint8, decoded on demand.

    Args:
      encoded: the encoded image files.
      size: the side to which each image is resized bilinearly; 0: images keep their size, which
        must be that of the first one.
      color: "rgb" or "gray"; "auto": gray if the first image is, and then all must be gray.
      digest: a text that changes with the content of the image files.
    """
    first = _open(encoded, 0, encoded.fetch(np.array([0]))[0])
    width, height = (size, size) if size else first.size
    all_gray = color == "auto" and first.mode in GRAY
    form = Form(width, height, "L" if all_gray or color == "gray" else "RGB", bool(size), all_gray)
    shape = (height, width, len(form.mode))

    def picture(job) -> np.ndarray:
        row, content = job
        return _formed(_open(encoded, row, content), form, f"{encoded.where}: image {row}")

    def read(rows: np.ndarray) -> np.ndarray:
        jobs = [*zip(rows.tolist(), encoded.fetch(rows), strict=True)]
        return in_threads(picture, jobs, shape)

    kind = f"{width}x{height}-{color}-{digest}"
    return LazyArray(read, (encoded.total, *shape), np.uint8, kind)


def _formed(image, form, where):
    """The pixels of an image in this form. Raises BadInput if its color or size does not fit."""
    from PIL import Image

    if form.all_gray and image.mode not in GRAY:
        raise BadInput(
            f"{where} is in color, but the first one is gray; convert all with"
            " --config.data.color=rgb or gray"
        )
    if not form.resized and image.size != (form.width, form.height):
        raise BadInput(
            f"{where} has {image.width}x{image.height} pixels, but the first one has"
            f" {form.width}x{form.height}; resize all, for example with --config.data.size=32"
        )
    image = image.convert(form.mode)
    if form.resized:
        image = image.resize((form.width, form.height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def in_order(fetch: Callable, total: int, title: str) -> Iterator[bytes]:
    """All encoded images in order, fetched in pieces, with a progress bar of this title."""
    with tqdm(total=total, desc=title, unit=" images", delay=2) as bar:
        for start in range(0, total, PIECE):
            contents = fetch(np.arange(start, min(start + PIECE, total)))
            yield from contents
            bar.update(len(contents))


def digest(encoded: Encoded, *arrays: np.ndarray) -> str:
    """16 hexadecimal digits that change with the bytes of any image or an entry of any array.

    All bytes are read, because uncompressed images, such as bitmaps, may differ and have equal
    sizes.
    """
    made = hashlib.sha256()
    for array in arrays:
        made.update(array.tobytes())
    for content in in_order(encoded.fetch, encoded.total, "reading"):
        made.update(len(content).to_bytes(8, "little") + content)
    return made.hexdigest()[:16]


def _open(encoded, row, content):
    """The decoded PIL image. Raises BadInput if it is damaged or not an image."""
    from PIL import Image

    with safe.reading(encoded.where, encoded.remedy, "is damaged or not an image", f"image {row}"):
        image = Image.open(io.BytesIO(content))
        check_image(image, len(content))
        image.load()
        return upright(image)
