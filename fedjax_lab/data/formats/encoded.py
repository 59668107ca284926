"""Images that a data set stores as encoded image files; they are decoded on demand."""

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
from tqdm import tqdm

from fedjax_lab.data import safe
from fedjax_lab.data.declared import SIDE
from fedjax_lab.data.formats.images import GRAY, check_image, in_threads, stretch, upright
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import Within

PIECE = 1000  # images that are read at a time
Size = Annotated[int, Within(0, SIDE.high)]  # of images; 0: they keep their size
Color = Literal["auto", "rgb", "gray"]


Fetch = Callable[[np.ndarray], Sequence[bytes]]  # row numbers [n] -> the bytes of these files


def pictures(
    fetch: Fetch, total: int, where: str, size: int, color: str, name: str, *arrays: np.ndarray
) -> LazyArray:
    """The images [R, H, W, channels] uint8, decoded on demand.

    fetch: reads the image files.
    total: their number R.
    where: the data set, for messages.
    size: the side to which each image is resized bilinearly; 0: images keep their size, which must
      be that of the first one.
    color: "rgb" or "gray"; "auto": gray if the first image is, and then all must be gray.
    name: the name of the images in the cache.
    arrays: the digest of the images changes with them, as with the bytes of the image files.
    """
    SIDE.check("data.size", size or SIDE.low)
    first = _open(where, 0, fetch(np.array([0]))[0])
    all_gray = color == "auto" and first.mode in GRAY
    mode = "L" if all_gray or color == "gray" else "RGB"
    width, height = sides = (size, size) if size else first.size

    def picture(job):
        image = _open(where, *job)
        if all_gray and image.mode not in GRAY:
            raise BadInput(
                f"{where}: image {job[0]} is in color, but the first one is gray; convert all with"
                " --config.data.color=rgb or gray"
            )
        if not size and image.size != sides:
            raise BadInput(
                f"{where}: image {job[0]} has {image.width}x{image.height} pixels, but the first"
                f" one has {width}x{height}; resize all, for example with --config.data.size=32"
            )
        image = image.convert(mode)
        return stretch(image, size) if size else image

    def read(rows: np.ndarray) -> np.ndarray:
        jobs = [*zip(rows.tolist(), fetch(rows), strict=True)]
        return in_threads(picture, jobs, shape)

    shape, digest = (height, width, len(mode)), _digest(fetch, total, *arrays)
    kind = f"{width}x{height}-{color}-{name}-{digest}"
    return LazyArray(read, (total, *shape), np.uint8, kind)


def in_order(fetch: Fetch, total: int, title: str) -> Iterator[bytes]:
    """All encoded images in order, fetched in pieces, with a progress bar of this title."""
    with tqdm(total=total, desc=title, unit=" images", delay=2) as bar:
        for start in range(0, total, PIECE):
            contents = fetch(np.arange(start, min(start + PIECE, total)))
            yield from contents
            bar.update(len(contents))


def _digest(fetch: Fetch, total: int, *arrays: np.ndarray) -> str:
    """16 hexadecimal digits that change with the bytes of any image or an entry of any array.

    All bytes are read, because uncompressed images, such as bitmaps, may differ and have equal
    sizes.
    """
    made = hashlib.sha256()
    for array in arrays:
        made.update(array.tobytes())
    for content in in_order(fetch, total, "reading"):
        made.update(len(content).to_bytes(8, "little") + content)
    return made.hexdigest()[:16]


def _open(where, row, content):
    """The decoded PIL image. Raises BadInput if it is damaged or not an image."""
    from PIL import Image

    problem = "is damaged or not an image"
    with safe.reading(where, problem=problem, part=f"image {row}"):
        image = Image.open(io.BytesIO(content))
        check_image(image, len(content))
        image.load()
        return upright(image)
