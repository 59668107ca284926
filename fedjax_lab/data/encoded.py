"""Pictures that a data set holds as the bytes of image files; decoded when they are asked for."""

import hashlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import ThreadPool
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from fedjax_lab.data import safe
from fedjax_lab.data.images import PIXEL, check_size
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.errors import BadInput, check_choice

PIECE = 1000  # pictures that are read at a time
COLORS = ("auto", "rgb", "gray")
GRAY = ("1", "L", "LA")  # what PIL calls pictures without colors
COLORED = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


class Encoded(NamedTuple):
    """The bytes of R image files."""

    fetch: Callable[[np.ndarray], Sequence[bytes]]  # row numbers [n] -> the files' bytes
    total: int  # R
    where: str  # the data set, for messages
    remedy: str  # how to have it anew


class Form(NamedTuple):
    """What all pictures become."""

    width: int
    height: int
    mode: str  # of PIL: "L", which is gray, or "RGB"
    resized: bool
    all_gray: bool  # so that a picture with colors is a mistake


def check_form(size: int, color: str) -> None:
    """BadInput for a side of the pictures or a color that `pictures` cannot give them."""
    if size:
        check_size(size)
    check_choice("data.color", color, COLORS)


def pictures(encoded: Encoded, size: int, color: str, digest: str) -> LazyArray:
    """The pictures [R, H, W, channels] uint8.

    Args:
      encoded: what is decoded.
      size: the side to which each is resized bilinearly; 0: they stay as they are, and must be of
        the size of the first.
      color: "rgb" or "gray"; "auto": gray if the first one is, and then none may have colors.
      digest: changes with the content of what is decoded.
    """
    first = _open(encoded, 0, encoded.fetch(np.array([0]))[0])
    width, height = (size, size) if size else first.size
    all_gray = color == "auto" and first.mode in GRAY
    form = Form(width, height, "L" if all_gray or color == "gray" else "RGB", bool(size), all_gray)
    shape = (height, width, len(form.mode))

    def picture(job) -> np.ndarray:
        row, content = job
        return _formed(_open(encoded, row, content), form, f"{encoded.where}: picture {row}")

    def read(rows: np.ndarray) -> np.ndarray:
        made = np.empty((len(rows), *shape), np.uint8)
        with ThreadPool() as threads:
            jobs = zip(rows.tolist(), encoded.fetch(rows), strict=True)
            for place, image in enumerate(threads.imap(picture, jobs, chunksize=64)):
                made[place] = image.reshape(shape)
        return made

    kind = f"{width}x{height}-{color}-{digest}"
    return LazyArray(read, (encoded.total, *shape), np.uint8, kind)


def _formed(image, form, where):
    """The pixels of a picture; BadInput where it is too unlike the first one."""
    from PIL import Image

    if form.all_gray and image.mode not in GRAY:
        raise BadInput(
            f"{where} has colors, the first one has not: --config.data.color=rgb, or gray, makes"
            " them alike"
        )
    if not form.resized and image.size != (form.width, form.height):
        raise BadInput(
            f"{where} has {image.width}x{image.height} pixels, the first one"
            f" {form.width}x{form.height}: --config.data.size=32 resizes all to 32x32"
        )
    image = image.convert(form.mode)
    if form.resized:
        image = image.resize((form.width, form.height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def in_order(fetch: Callable, total: int, title: str) -> Iterator[bytes]:
    """All that `fetch` gets by row numbers, a piece at a time, with a progress bar so called."""
    with tqdm(total=total, desc=title, unit=" pictures", delay=2) as bar:
        for start in range(0, total, PIECE):
            contents = fetch(np.arange(start, min(start + PIECE, total)))
            yield from contents
            bar.update(len(contents))


def digest(encoded: Encoded, *arrays: np.ndarray) -> str:
    """16 hexadecimal digits that change with the bytes of any picture or an entry of an array.

    All bytes are read: files of one size, as bitmaps have, tell nothing by their sizes.
    """
    made = hashlib.sha256()
    for array in arrays:
        made.update(array.tobytes())
    for content in in_order(encoded.fetch, encoded.total, "reading"):
        made.update(len(content).to_bytes(8, "little") + content)
    return made.hexdigest()[:16]


def _open(encoded, row, content):
    """A picture as PIL reads it, decoded; BadInput where that is impossible."""
    from PIL import Image

    with safe.reading(encoded.where, encoded.remedy, "is damaged or no image", f"picture {row}"):
        image = Image.open(io.BytesIO(content))
        pixels = math.prod(image.size)
        if image.format == "PNG":  # a pixel has one bit at least
            safe.check_claim(pixels // 8, len(content))
        safe.check_memory(PIXEL * pixels)
        if image.mode not in (*GRAY, *COLORED):
            raise ValueError(f"its pixels are of PIL's kind {image.mode}, not of 8 bits")
        image.load()
        return image
