"""Tiny-ImageNet: 200 classes of ImageNet at 64 x 64 pixels, resized as in FedConcat.

Files: http://cs231n.stanford.edu/tiny-imagenet-200.zip. The test images have no labels, so the
validation images are used as the test set.
"""

from functools import partial
from pathlib import Path
from typing import Annotated

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats.images import Look, Split, class_images, image_dataset, image_source
from fedjax_lab.data.places import fetched, locate
from fedjax_lab.errors import quoted
from fedjax_lab.ranges import Within

VERSION = 1  # of the pixels; increment it with every change that alters a pixel
find = partial(locate, names=("wnids.txt", "tiny-imagenet-200/wnids.txt"))
HELP = fetched(
    "tiny_imagenet",
    "fetch and unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip and name the folder"
    " tiny-imagenet-200 with wnids.txt, train/ and val/ with --config.data.folder (or move it to"
    " ~/.cache/fedjax_lab)",
)


@image_source(HELP)
def tiny_imagenet(*, folder: str = "", size: Annotated[int, Within(8, 64)] = 32) -> Dataset:
    """Tiny-ImageNet: 100,000 + 10,000 images [size, size, 3]; the classes are sorted WordNet ids.

    folder: tiny-imagenet-200 or its parent; empty: ~/.cache/fedjax_lab and data/ are searched.
    size: the side of an image in pixels, from 8 to 64.

    The resized images are cached in $FEDJAX_LAB_CACHE, else in ~/.cache/fedjax_lab, until names or
    sizes of files or the labels change.
    """
    where = find(folder).parent
    classes = tuple(sorted(set(safe.lines(where / "wnids.txt"))))
    folders = [where / "train" / name / "images" for name in classes]
    train, test = class_images(folders, [".jpeg"]), validation_files(where, classes)
    title, domains = f"tiny_imagenet-v{VERSION}", ("tiny_imagenet",)
    return image_dataset(title, [train], [test], Look(size), classes, domains)


def validation_files(where: Path, classes: tuple[str, ...]) -> Split:
    """The files of val/ in the order of val_annotations.txt: name, class, bounding box."""
    table = where / "val" / "val_annotations.txt"
    number, made = {name: label for label, name in enumerate(classes)}, []
    for line in safe.lines(table):
        file, name, *_ = *line.split("\t"), ""
        if name not in number:
            what = f"class {quoted(name)} of {quoted(file)}"
            raise safe.Fault(f"{table}: {what} is not in wnids.txt")
        made.append((where / "val" / "images" / file, number[name]))
    return made
