"""GTSRB (Stallkamp et al. 2012): the German traffic sign recognition benchmark.

Files: https://benchmark.ini.rub.de/gtsrb_news.html. Final_Training/Images/00000 .. 00042, each with
.ppm images and a table GT-000xx.csv; Final_Test/Images; GT-final_test.csv. A table has a row
Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId for each image.
"""

import csv
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import Side
from fedjax_lab.data.formats.image_arrays import labels_of
from fedjax_lab.data.formats.images import Look, image_dataset, image_source, rgb
from fedjax_lab.data.places import fetched, locate

VERSION = 1  # of the pixels; increment it with every change that alters a pixel
CLASSES = tuple(
    "speed limit 20, speed limit 30, speed limit 50, speed limit 60, speed limit 70, "
    "speed limit 80, end of speed limit 80, speed limit 100, speed limit 120, no passing, "
    "no passing for trucks, priority at the next intersection, priority road, yield, stop, "
    "no vehicles, no trucks, no entry, general caution, curve to the left, curve to the right, "
    "double curve, bumpy road, slippery road, road narrows, road work, traffic signals, "
    "pedestrians, children, bicycles, ice or snow, wild animals, end of all limits, "
    "turn right, turn left, ahead only, straight or right, straight or left, keep right, "
    "keep left, roundabout, end of no passing, end of no passing for trucks".split(", ")
)
IMAGES = "Final_Training/Images"
FOLDERS = ("", "GTSRB/", "gtsrb/GTSRB/", "gtsrb/")
find = partial(locate, names=[f"{at}{IMAGES}" for at in FOLDERS], kind=Path.is_dir)
TEST = "GT-final_test.csv"
HELP = fetched(
    "gtsrb",
    f"name the folder with {IMAGES}, Final_Test/Images and {TEST} with --config.data.folder (or"
    " move it to ~/.cache/fedjax_lab/gtsrb)",
)
COLUMNS = ("Filename", "Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2", "ClassId")
Box = tuple[int, ...]  # left, top, right, bottom; right and bottom are exclusive


class Sign(NamedTuple):
    """A row of a table: one image."""

    file: Path
    box: Box
    label: int


@image_source(HELP)
def gtsrb(*, folder: str = "", size: Side = 32, roi: bool = False) -> Dataset:
    """GTSRB: 39,209 training and 12,630 test images [size, size, 3] of 43 classes of unequal size.

    folder: the folder with Final_Training and Final_Test, or with a folder GTSRB; empty:
        ~/.cache/fedjax_lab and data/ are searched.
    size: the side of an image in pixels; images are stretched to a square.
    roi: crop each image to its sign; otherwise a margin of about a tenth is kept.

    The training set has 30 consecutive images of each physical sign, so that randomly drawn
    validation images are easier than the test set. Decoded pixels are cached in $FEDJAX_LAB_CACHE,
    else in ~/.cache/fedjax_lab, until a file or a box changes. Raises BadInput if files are missing
    or damaged.
    """
    where = find(folder).parents[1]
    names = [f"{label:05}" for label in range(len(CLASSES))]
    tables = [where / IMAGES / name / f"GT-{name}.csv" for name in names]
    train = [sign for table in tables for sign in signs(table, table.parent)]
    test = signs(_test_table(where), where / "Final_Test/Images")
    colors, boxes = _cropped([*train, *test]) if roi else (rgb, "whole")
    title, look = f"gtsrb-{boxes}-v{VERSION}", Look(size, colors)
    splits = [[(sign.file, sign.label) for sign in part] for part in (train, test)]
    return image_dataset(title, splits[:1], splits[1:], look, CLASSES, ("gtsrb",))


def signs(table: Path, folder: Path) -> list[Sign]:
    """The rows of a table whose images are in the folder."""
    rows = csv.DictReader(safe.lines(table), delimiter=";")
    with safe.reading(table, problem="is damaged or not a table of GTSRB"):
        made = [
            Sign(folder / name, tuple(map(int, box)), int(label))
            for name, *box, label in ([row[column] for column in COLUMNS] for row in rows)
        ]
    labels_of(table, [sign.label for sign in made], len(made), range(len(CLASSES)))
    if not made:
        raise safe.Fault(f"{table} has no images")
    return made


def _test_table(where: Path) -> Path:
    """The table with the classes of the test images; it may be unpacked to one of three places."""
    places = [folder / TEST for folder in (where / "Final_Test/Images", where, where.parent)]
    return next((path for path in places if path.is_file()), places[0])


def _cropped(all_signs: list[Sign]) -> tuple[Callable, str]:
    """A function that crops an open PIL image to its sign, and a short digest of all boxes."""
    boxes = {str(sign.file): sign.box for sign in all_signs}

    def colors(image):
        left, top, right, bottom = box = boxes[image.filename]
        if not (0 <= left < right <= image.width and 0 <= top < bottom <= image.height):
            raise ValueError(f"the box of its sign, {box}, is outside the image of {image.size}")
        return rgb(image.crop(box))

    digest = hashlib.sha256(repr([sign.box for sign in all_signs]).encode()).hexdigest()
    return colors, f"roi-{digest[:8]}"
