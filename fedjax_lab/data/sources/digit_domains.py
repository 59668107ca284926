"""Five domains of digits in the form of Digits-Five, generated on this machine without a download.

The images are made from installed packages: scikit-learn's 1,797 handwritten digits (UCI optdigits)
and two photographs, and matplotlib's fonts. Training and test examples share none of this material.
`python -m fedjax_lab.data.sources.digit_domains sheet.png` draws examples of every domain.
"""

import contextlib
import gzip
import importlib.util
import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache as remembered
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_lab.data import safe, writing
from fedjax_lab.data.cache import cache_folder, load, save
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.ranges import NotNegative, Within

VERSION = 1  # of the images; increment it with every change that alters a pixel
DOMAINS = ("handwritten", "blended", "printed", "street", "postal")
CLASSES = tuple("0123456789")
_FONTS = {
    ("printed", False): "DejaVuSerif-Bold DejaVuSerif-BoldItalic STIXGeneralBol STIXGeneralBolIta"
    " STIXGeneralItalic cmr10 cmti10",
    ("printed", True): "DejaVuSerif DejaVuSerif-Italic STIXGeneral cmb10",
    ("street", False): "DejaVuSans DejaVuSans-Oblique DejaVuSansMono-Bold"
    " DejaVuSansMono-BoldOblique cmss10 cmtt10",
    ("street", True): "DejaVuSans-Bold DejaVuSans-BoldOblique DejaVuSansMono"
    " DejaVuSansMono-Oblique",
}
# By (domain, test); a slanted font is in the same split as its upright variant.
FONTS = {key: tuple(names.split()) for key, names in _FONTS.items()}
FONT_DOMAINS = tuple(dict.fromkeys(name for name, _ in FONTS))
MANY = 2000  # images, which take longer than the start of a process
PROGRAM = """
import json, pickle, sys
from fedjax_lab.data.sources.digit_domains import draw_domains
pickle.dump(draw_domains(*json.loads(sys.argv[1])), sys.stdout.buffer)
"""
PHOTO_TEST_COLUMNS = 240  # of 640 columns; the left part of a photograph is for test examples only

_INK = 80  # side in pixels of the ink images from which every digit is drawn
_OVERSAMPLING = 2
_MARGIN = 1.25  # smallest distance of the labeled digit's ink from the edge, in pixels


class Ink(NamedTuple):
    """The ink of a digit, and the linear map that scales it to its size in the image."""

    image: np.ndarray  # [h, w] uint8, 255 is full ink
    linear: np.ndarray  # [2, 2], from ink pixels (x, y) to image pixels
    middle: np.ndarray  # [2] (x, y), center of the ink in ink pixels
    half: np.ndarray  # [2] half width and height of the mapped ink in image pixels


Count = Annotated[int, Within(10)]  # one of each digit
Drawn = dict[
    str, list[tuple[np.ndarray, np.ndarray]]
]  # images and labels of both splits, by domain


@source()
def digit_domains(
    *,
    size: Annotated[int, Within(16, 128)] = 28,
    train_per_domain: Count = 1000,
    test_per_domain: Count = 500,
    seed: NotNegative[int] = 0,
    cache: str = "",
) -> Dataset:
    """Digit domains: images [R, size, size, 3] uint8 of five domains with balanced classes.

    size: the side of an image in pixels, from 16 to 128.
    train_per_domain: the number of training images of each domain.
    test_per_domain: the number of test images of each domain.
    seed: the random seed; the same settings give the same images, bit for bit.
    cache: the folder in which the images are cached; empty: $FEDJAX_LAB_CACHE, else
        ~/.cache/fedjax_lab.
    """
    name = f"digit_domains-v{VERSION}-{size}px-{train_per_domain}-{test_per_domain}-seed{seed}.npz"
    file = cache_folder(cache) / name
    made = load(file)
    if made is None:
        size_in_bytes = len(DOMAINS) * (train_per_domain + test_per_domain) * size * size * 3
        what = f"the images of config.data.train_per_domain={train_per_domain}"
        safe.check_fits(size_in_bytes, what, "lower it or config.data.test_per_domain")
        made = generate(size, train_per_domain, test_per_domain, seed)
        save(file, made)
    return Dataset(**made, classes=CLASSES, domains=DOMAINS)


def generate(size: int, train: int, test: int, seed: int) -> dict[str, np.ndarray]:
    """The arrays x, y, domain and test, ordered by domain; training examples come first in each.

    Of many images, another process draws those with fonts, which is half of the work.
    """
    if len(DOMAINS) * (train + test) < MANY:
        made = draw_domains(DOMAINS, size, train, test, seed)
    else:
        with _another_process(FONT_DOMAINS, size, train, test, seed) as drawn:
            here = [name for name in DOMAINS if name not in FONT_DOMAINS]
            made = draw_domains(here, size, train, test, seed)
            made |= drawn() or draw_domains(FONT_DOMAINS, size, train, test, seed)
    parts = [(*of_split, place) for place, name in enumerate(DOMAINS) for of_split in made[name]]
    counts = [len(y) for _, y, _ in parts]
    return {
        "x": np.concatenate([x for x, _, _ in parts]),
        "y": np.concatenate([y for _, y, _ in parts]),
        "domain": np.repeat([place for _, _, place in parts], counts).astype(np.int32),
        "test": np.repeat([False, True] * len(DOMAINS), counts),
    }


def draw_domains(names: Sequence[str], size: int, train: int, test: int, seed: int) -> Drawn:
    """The training and the test images of these domains, with their labels."""
    counts = (train, False), (test, True)
    return {
        name: [_split(name, size, count, seed, is_test) for count, is_test in counts]
        for name in names
    }


@contextlib.contextmanager
def _another_process(names, size, train, test, seed) -> Iterator[Callable[[], Drawn | None]]:
    """Begins `draw_domains` in another process; the function waits for its result.

    The function returns None if there can be no such process.
    """
    words = [
        sys.executable or "python",
        "-c",
        PROGRAM,
        json.dumps([names, size, train, test, seed]),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(words, stdin=none, stdout=pipe, stderr=none, env=environment)
    except OSError:
        yield lambda: None
        return

    def result():
        made, _ = process.communicate()
        return pickle.loads(made) if process.returncode == 0 else None

    with process:
        try:
            yield result
        finally:
            process.kill()  # after an interrupt; otherwise it has ended


def source_digits(seed: int, test: bool) -> np.ndarray:
    """The indices [N] of scikit-learn's digits for this split: a fifth of each class for testing.

    All domains use the same split.
    """
    rng = np.random.default_rng([seed, len(DOMAINS)])
    return np.concatenate(split_digits(rng, _labels())[test])


def split_digits(
    rng: np.random.Generator, labels: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The training and the test rows of each class, at random: a fifth of a class for testing."""
    rows = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(CLASSES))]
    return [r[len(r) // 5 :] for r in rows], [r[: len(r) // 5] for r in rows]


def photo_regions(test: bool) -> list[np.ndarray]:
    """The region [h, w, 3] uint8 of each photograph that this split uses."""
    columns = slice(PHOTO_TEST_COLUMNS) if test else slice(PHOTO_TEST_COLUMNS, None)
    return [photo[:, columns] for photo in _photos()]


def contact_sheet(
    dataset: Dataset, path: str | Path, per_domain_rows: int = 3, columns: int = 20
) -> None:
    """Writes a PNG with examples of every domain, ordered by class, with the names at the left."""
    from PIL import Image, ImageDraw, ImageFont, ImageOps

    cell, left = 2 * dataset.x.shape[1] + 2, 130  # drawn twice as large
    block = per_domain_rows * cell + 6
    sheet = Image.new("RGB", (left + columns * cell, len(dataset.domains) * block), "white")
    pen = ImageDraw.Draw(sheet)
    for index, name in enumerate(dataset.domains):
        where = (8, index * block + block // 2)
        pen.text(where, name, "black", font=ImageFont.load_default(18), anchor="lm")
        for place, row in enumerate(_sample(dataset, index, per_domain_rows, columns)):
            down, across = divmod(place, columns)
            pixels = dataset.x[row] if dataset.x.shape[-1] == 3 else dataset.x[row, :, :, 0]
            picture = Image.fromarray(pixels).resize((cell - 2, cell - 2), Image.Resampling.NEAREST)
            sheet.paste(picture, (left + across * cell, index * block + down * cell))
    content = io.BytesIO()
    ImageOps.posterize(sheet, 5).save(content, "png", optimize=True)  # half the bytes
    writing.replace(Path(path), content.getvalue())


def _sample(dataset: Dataset, domain: int, rows: int, columns: int) -> np.ndarray:
    """Row numbers [rows * columns]: each column of the sheet shows one class of the domain."""
    of_domain = np.flatnonzero(dataset.domain == domain)
    labels = np.unique(dataset.y[of_domain])
    chosen = np.empty((rows, columns), np.int64)
    for index, label in enumerate(labels):
        across = np.arange(columns) * len(labels) // columns == index
        of_label = of_domain[dataset.y[of_domain] == label]
        chosen[:, across] = np.resize(of_label, (rows, across.sum()))
    return chosen.ravel()


# Material


@remembered
def _table() -> np.ndarray:
    """scikit-learn's digits [1797, 65] uint8: 8 x 8 pixels and the label."""
    file = _package("sklearn") / "datasets/data/digits.csv.gz"  # its import takes a second
    with gzip.open(file, "rt") as lines:
        return np.array([line.split(",") for line in lines], np.uint8)


def _labels() -> np.ndarray:
    """The labels [1797] of scikit-learn's digits."""
    return _table()[:, 64].astype(np.int64)


@remembered
def _scanned() -> np.ndarray:
    """The ink [1797, _INK, _INK] uint8 of scikit-learn's digits."""
    from PIL import Image, ImageFilter

    images = _table()[:, :64].reshape(-1, 8, 8)
    padded = np.pad(images * (255 / 16), ((0, 0), (1, 1), (1, 1))).astype(np.uint8)
    clear = ImageFilter.UnsharpMask(radius=_INK / 10, percent=150, threshold=0)  # keeps loops open
    large = [Image.fromarray(small).resize((_INK, _INK)).filter(clear) for small in padded]
    ink = np.stack([np.asarray(image) for image in large])
    sharp = 255 / (1 + np.exp(-12 * (np.arange(256, dtype=np.float32) / 255 - 0.42)))
    return sharp.astype(np.uint8)[ink]


@remembered
def _photos() -> list[np.ndarray]:
    """scikit-learn's two photographs, [427, 640, 3] uint8 each."""
    from PIL import Image

    folder = _package("sklearn") / "datasets/images"
    return [np.asarray(Image.open(folder / name)) for name in ("china.jpg", "flower.jpg")]


@remembered
def _glyph(font: str, label: int) -> np.ndarray:
    """The ink [_INK, _INK] uint8 of a digit in one of matplotlib's fonts."""
    from PIL import Image, ImageDraw, ImageFont

    file = _package("matplotlib") / f"mpl-data/fonts/ttf/{font}.ttf"
    image = Image.new("L", (_INK, _INK))
    face = ImageFont.truetype(str(file), round(0.8 * _INK))
    ImageDraw.Draw(image).text((_INK / 2, _INK / 2), str(label), 255, font=face, anchor="mm")
    return np.asarray(image)


def _package(name: str) -> Path:
    """The folder of an installed package, without importing it."""
    package = importlib.util.find_spec(name)
    assert package is not None and package.origin is not None
    return Path(package.origin).parent


# Geometry


def pose(
    rng: np.random.Generator, image: np.ndarray, degrees: float, shear: float, extent: float
) -> Ink:
    """Rotates and shears ink at random and scales its longer side to `extent` pixels."""
    angle, slope = np.deg2rad(rng.uniform(-degrees, degrees)), rng.uniform(-shear, shear)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    linear = turn @ np.array([[1, slope], [0, 1]])
    points = _outline(image > 25) @ linear.T
    low, high = points.min(0), points.max(0)
    scale = extent / (high - low).max()
    middle = np.linalg.solve(linear, (low + high) / 2)
    return Ink(image, scale * linear, middle, scale * (high - low) / 2)


def _outline(ink: np.ndarray) -> np.ndarray:
    """The middles (x, y) of the first and the last ink pixel of each row: [2 * rows, 2]."""
    rows = ink.any(1).nonzero()[0]
    points = np.empty((2, len(rows), 2))
    points[0, :, 0] = ink.argmax(1)[rows]
    points[1, :, 0] = ink.shape[1] - 1 - ink[:, ::-1].argmax(1)[rows]
    points[..., 1] = rows
    return points.reshape(-1, 2) + 0.5


def place(rng: np.random.Generator, ink: Ink, size: int, reach: float) -> np.ndarray:
    """A random center (x, y), at most `reach` pixels off the middle, all ink within the margin."""
    slack = np.maximum(size / 2 - _MARGIN - ink.half, 0)
    return size / 2 + rng.uniform(-1, 1, 2) * np.minimum(slack, reach)


def draw(ink: Ink, center: np.ndarray, size: int) -> np.ndarray:
    """The ink coverage, 0 to 1, of each pixel of a [size, size] image; the digit is at `center`."""
    from PIL import Image

    side = size * _OVERSAMPLING
    back = np.linalg.inv(ink.linear) / _OVERSAMPLING
    start = ink.middle - back @ (center * _OVERSAMPLING)
    terms = (*back[0], start[0], *back[1], start[1])
    large = Image.fromarray(ink.image).transform(
        (side, side), Image.Transform.AFFINE, terms, Image.Resampling.BILINEAR
    )
    return np.asarray(large.reduce(_OVERSAMPLING), np.float32) / 255


# Paint


def _two_colors(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    """Two colors [2, 3] in 0..255 whose brightness differs by `low` to `high`."""
    gap = rng.uniform(low, high)
    brightness = rng.uniform(15, 255 - gap) + np.array([0, gap])
    hue = rng.uniform(-60, 60, (2, 3))
    colors = brightness[:, None] + hue - hue.mean(1, keepdims=True)
    return rng.permutation(np.clip(colors, 0, 255))


def _paint(ink: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """Draws ink [size, size] in the first color on a background of the second: [size, size, 3]."""
    return ink[..., None] * colors[0] + (1 - ink[..., None]) * colors[1]


def _blurred(picture: np.ndarray, radius: float) -> np.ndarray:
    """An image [size, size, 3] after a Gaussian blur; `radius` is in pixels."""
    from PIL import Image, ImageFilter

    image = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
    return np.asarray(image.filter(ImageFilter.GaussianBlur(radius)), np.float32)


def _piece(rng: np.random.Generator, size: int, test: bool) -> np.ndarray:
    """A random square piece of a photograph, with 1 to 3 times `size` pixels a side."""
    regions = photo_regions(test)
    region = regions[rng.integers(len(regions))]
    side = min(int(size * rng.uniform(1, 3)), *region.shape[:2])
    down, across = (rng.integers(length - side + 1) for length in region.shape[:2])
    return region[down : down + side, across : across + side][:, :: rng.choice([-1, 1])]


def _shrunk(piece: np.ndarray, size: int) -> np.ndarray:
    """A piece of a photograph as an image [size, size, 3]."""
    from PIL import Image

    patch = Image.fromarray(piece).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(patch, np.float32)


def _cloud(rng: np.random.Generator, size: int, cells: int) -> np.ndarray:
    """A smooth random texture [size, size, 3], about -1 to 1, with `cells` cells on each side."""
    from PIL import Image

    lumps = rng.integers(0, 256, (cells, cells, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(lumps).resize((size, size)), np.float32) / 127.5 - 1


def _thicker(image: np.ndarray, reach: int) -> np.ndarray:
    """The largest value within `reach` pixels up, down and to both sides of each pixel."""
    for _ in range(2 * reach):  # along the rows and the columns in turn
        wide = np.pad(image.T, ((1, 1), (0, 0)))
        image = np.maximum(np.maximum(wide[:-2], wide[1:-1]), wide[2:])
    return image


# The five domains: each function takes (rng, label, handwritten ink, size, test) and returns an
# image [size, size, 3]. The ink is None for domains with fonts.


def _handwritten(rng, label, scan, size, test):
    """White on black, upright and centered, like MNIST."""
    ink = pose(rng, scan, 10, 0.15, size * rng.uniform(0.66, 0.8))
    return 255 * np.repeat(draw(ink, place(rng, ink, size, 0.04 * size), size)[..., None], 3, -1)


def _blended(rng, label, scan, size, test):
    """The absolute difference of a digit and a photograph, like MNIST-M."""
    digit = _handwritten(rng, label, scan, size, test)
    pieces = [_piece(rng, size, test) for _ in range(4)]
    ink = digit[..., 0] > 127

    def contrast(patch):
        return np.abs((255 - 2 * patch[ink]).mean(0)).mean()

    patch = _shrunk(pieces[0], size)
    if contrast(patch) <= 70:  # ink is invisible on mid-gray
        patch = max((patch, *(_shrunk(piece, size) for piece in pieces[1:])), key=contrast)
    return np.abs(patch - digit)


def _printed(rng, label, scan, size, test):
    """A serif font in two distinct colors, rotated, of varying size, slightly blurred."""
    glyph = _glyph(str(rng.choice(FONTS["printed", test])), label)
    ink = pose(rng, glyph, 15, 0.15, size * rng.uniform(0.5, 0.86))
    drawn = draw(ink, place(rng, ink, size, 0.15 * size), size)
    picture = _paint(drawn, _two_colors(rng, 90, 220))
    return _blurred(picture, size / 28 * rng.uniform(0, 0.8)) + rng.normal(0, 5, picture.shape)


def _street(rng, label, scan, size, test):
    """A sans-serif digit between cropped neighbors, low in contrast and unevenly lit, like SVHN."""
    font = str(rng.choice(FONTS["street", test]))
    extent = size * rng.uniform(0.52, 0.82)
    ink = pose(rng, _glyph(font, label), 12, 0.2, extent)
    center = place(rng, ink, size, 0.08 * size)
    drawn = draw(ink, center, size)
    for side in (-1, 1):
        if rng.random() < 0.7:
            beside = pose(rng, _glyph(font, int(rng.integers(10))), 8, 0.1, extent)
            apart = max(ink.half[0] + beside.half[0], 0.4 * size) + size * rng.uniform(0.04, 0.12)
            drawn = np.maximum(drawn, draw(beside, center + np.array([side * apart, 0]), size))
    picture = _paint(drawn, _two_colors(rng, 60, 115)) + 26 * _cloud(rng, size, 5)
    picture *= 1 - 0.3 * (1 + _cloud(rng, size, 2)[..., :1]) / 2
    return _blurred(picture, size / 28 * rng.uniform(0.3, 1.0)) + rng.normal(0, 6, picture.shape)


def _postal(rng, label, scan, size, test):
    """Thick strokes, large and off center, in 16 x 16 pixels and few gray levels, like USPS."""
    from PIL import Image

    ink = pose(rng, _thicker(scan, rng.choice([0, 1, 2])), 8, 0.3, size * rng.uniform(0.7, 0.9))
    fine = Image.fromarray((255 * draw(ink, place(rng, ink, size, size), size)).astype(np.uint8))
    coarse = fine.resize((16, 16), Image.Resampling.BOX)
    gray = np.asarray(coarse.resize((size, size), Image.Resampling.BILINEAR), np.float32)
    ground = rng.uniform(0, 50)
    return np.repeat((ground + gray // 32 * 32 * (240 - ground) / 224)[..., None], 3, -1)


_RENDERERS = dict(zip(DOMAINS, (_handwritten, _blended, _printed, _street, _postal), strict=True))


def _split(
    name: str, size: int, count: int, seed: int, test: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Images [count, size, size, 3] uint8 and balanced labels [count] int32 of one domain."""
    rng = np.random.default_rng([seed, DOMAINS.index(name), int(test)])
    labels = rng.permutation(np.arange(count) % 10).astype(np.int32)
    scans, render = None if name in FONT_DOMAINS else _scanned(), _RENDERERS[name]
    rows = deal(rng, labels, source_digits(seed, test))
    pictures = np.empty((count, size, size, 3), np.uint8)
    for index, (label, row) in enumerate(zip(labels, rows, strict=True)):
        scan = None if scans is None else scans[row]
        pictures[index] = np.clip(render(rng, int(label), scan, size, test), 0, 255)
    return pictures, labels


def deal(rng: np.random.Generator, labels: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """A source digit of the right class for each label [R]; all are used before any is repeated."""
    classes = _labels()[pool]
    rows = np.empty(len(labels), np.int64)
    for label in range(10):
        wanted = labels == label
        rows[wanted] = np.resize(rng.permutation(pool[classes == label]), wanted.sum())
    return rows


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m fedjax_lab.data.sources.digit_domains SHEET.png")
    contact_sheet(digit_domains(), sys.argv[1])
