"""DomainNet (Peng et al. 2019, arXiv:1812.01754): six domains, 345 classes.

`domainnet` has ten classes and FedBN's split; `domainnet_full` has random classes and the official
split.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import Side
from fedjax_lab.data.formats.images import Look, Split, image_dataset, image_source
from fedjax_lab.data.places import fetched, fetched_by_hand, locate
from fedjax_lab.data.safe import Fault
from fedjax_lab.data.sources._domain_folders import PARTS, Release, inside, read
from fedjax_lab.errors import check_range, quoted
from fedjax_lab.ranges import NotNegative, Positive

RELEASE = Release(
    name="domainnet-v1",
    folder="DomainNet",
    domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    classes=tuple(
        "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra".split()
    ),
)
TRAINING = 500  # training images of each domain in FedPick
VERSION = 1  # of the pixels of `domainnet_full`; increment it with every change that alters a pixel
LISTS = ("", "splits/", "DomainNet/", "DomainNet/splits/")  # possible folders of official lists
find_full = partial(locate, names=[f"{at}{RELEASE.domains[0]}_train.txt" for at in LISTS])
FULL_HELP = fetched(
    "domainnet_full",
    "fetch the six archives (cleaned version) and the twelve lists clipart_train.txt,"
    " clipart_test.txt .. of http://ai.bu.edu/M3SDA/, unpack them into one folder DomainNet with"
    " clipart/, infograph/, painting/, quickdraw/, real/, sketch/ and the lists (or these in"
    " splits/) and name it with --config.data.folder (or move it to ~/.cache/fedjax_lab)",
)


class Line(NamedTuple):
    """An image in an official list."""

    file: Path
    name: str  # of the class
    label: int  # 0..344


@image_source(fetched_by_hand("domainnet"))
def domainnet(*, folder: str = "", size: Side = 256) -> Dataset:
    """DomainNet: images [R, size, size, 3] of ten classes in six domains, as in FedPick.

    folder: the folder of the data set, or its parent; empty: ~/.cache/fedjax_lab and data/ are
        searched.
    size: the side of an image in pixels.

    The training set has the first 500 images of each training list; the test set has all test
    images: 526, 657, 619, 1000, 1217 and 554. Decoded images are cached as in `images.decoded`.
    """
    return read(RELEASE, folder, size, lambda labels: np.arange(min(TRAINING, len(labels))))


@image_source(FULL_HELP)
def domainnet_full(
    *,
    folder: str = "",
    size: Side = 64,
    classes: Positive[int] = 50,
    classes_seed: NotNegative[int] = 0,
) -> Dataset:
    """DomainNet(classes): images [R, size, size, 3] of `classes` of its 345, as in Client2Vec.

    folder: the folder with the domains, or its parent; empty: ~/.cache/fedjax_lab and data/ are
        searched.
    size: the side of an image in pixels.
    classes: the number of classes, drawn at random; they keep their order.
    classes_seed: the seed of that draw.

    Training and test images are those of the official lists. Decoded images are cached as in
    `images.decoded`.
    """
    lists = find_full(folder).parent
    where = lists.parent if lists.name == "splits" else lists
    train, test = (
        [listed(where, lists / f"{domain}_{part}.txt", domain) for domain in RELEASE.domains]
        for part in PARTS
    )
    class_names = names_of_labels([line for lines in (*train, *test) for line in lines], lists)
    check_range("data.classes", classes, 1, len(class_names))
    rng = np.random.default_rng(classes_seed)
    chosen = np.sort(rng.choice(len(class_names), classes, replace=False)).tolist()
    kept = [[_class_images(lines, chosen) for lines in part] for part in (train, test)]
    names = [class_names[label] for label in chosen]
    title = f"domainnet_full-v{VERSION}"
    return image_dataset(title, kept[0], kept[1], Look(size), names, RELEASE.domains)


def listed(where: Path, file: Path, domain: str) -> list[Line]:
    """The lines `domain/class/image label` of an official list."""
    return [_line(where, file, line, domain) for line in safe.lines(file)]


def names_of_labels(lines: Sequence[Line], lists: Path) -> list[str]:
    """The names of the classes 0, 1, ... Raises a Fault unless labels and names are one to one."""
    names: dict[int, str] = {}
    for line in lines:
        if names.setdefault(line.label, line.name) != line.name:
            both = f"{quoted(names[line.label])} and {quoted(line.name)}"
            raise Fault(f"{lists}: label {line.label} stands for {both}")
    count = len(set(names.values()))
    if sorted(names) != list(range(count)):
        raise Fault(f"{lists}: the labels of {count} classes are not 0, 1, ..")
    return [names[label] for label in range(len(names))]


def _line(where: Path, file: Path, text: str, domain: str) -> Line:
    path, label = (*text.rsplit(maxsplit=1), "")[:2]
    if not (label.isascii() and label.isdigit() and len(label) <= 6):
        raise Fault(f"{file}: {quoted(text, 80)} is not a path and a label")
    inner = inside(path, RELEASE.folder, file)
    if len(inner.parts) != 3 or inner.parts[0] != domain:
        raise Fault(f"{file}: {quoted(path, 80)} is not {domain}/CLASS/IMAGE")
    return Line(where / inner, inner.parts[1], int(label))


def _class_images(lines: Sequence[Line], chosen: Sequence[int]) -> Split:
    """The images with these labels, relabeled by the position of the label in `chosen`."""
    number = {label: place for place, label in enumerate(chosen)}
    return [(line.file, number[line.label]) for line in lines if line.label in number]
