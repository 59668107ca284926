"""Groups of image files with the same domain, user and split, and the dataset made of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats.columns import positions, sorted_names
from fedjax_lab.data.formats.images import (
    COLORS,
    FITS,
    Split,
    arrays,
    check_size,
    rgb,
    stretch,
    upright,
)
from fedjax_lab.errors import BadInput, check_choice, quoted

SPLITS = {  # usual names of a split: its kind
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
}


def kind_of_split(name: str, where: Path, remedy: str) -> str:
    """The kind of the split of this name. Raises BadInput if it is none of SPLITS."""
    if name.lower() not in SPLITS:
        what = f"{quoted(name)} is not one of the splits {', '.join(SPLITS)}"
        raise BadInput(f"{where}: {what}: {remedy}")
    return SPLITS[name.lower()]


class Part(NamedTuple):
    """Image files with the same domain, split and user."""

    images: Split
    domain: str
    split: str = "train"  # or "test", or "validation"
    user: str = ""


class Look(NamedTuple):
    """How image files are converted to the images of a dataset."""

    size: int  # of a side, in pixels
    colors: Callable = rgb
    fit: Callable = stretch
    name: str = ""  # in the names of cache files; empty for RGB and `stretch`


def make_look(size: int, color: str, resize: str) -> Look:
    """The look for these settings of a config. Raises BadInput for an invalid value."""
    check_size(size)
    check_choice("data.color", color, COLORS)
    check_choice("data.resize", resize, FITS)

    def fit(image, size):  # pictures of one's own may be photographs from a camera
        return FITS[resize](upright(image), size)

    named = (each for each in (color, resize) if each not in ("rgb", "stretch"))
    return Look(size, COLORS[color], fit, "".join(f"-{each}" for each in named))


def gather(
    title: str,
    parts: Sequence[Part],
    classes: Sequence[str],
    domains: Sequence[str],
    look: Look,
    remedy: str,
    truncated: bool = False,
) -> Dataset:
    """The dataset of these parts, training examples first and ordered by domain; x is lazy.

    Validation images are test examples if there are no test images, and training examples
    otherwise. Parts without images are left out.

    Args:
      title: the name of the images in the cache.
      parts: the image files.
      classes: the names of the labels.
      domains: the names of the domains, in their order.
      look: how image files are converted to x.
      remedy: how to get the files, for messages.
      truncated: whether truncated files are read as far as possible.

    Raises:
      BadInput: there are no training images, or a file is missing or (when it is decoded) damaged.
    """
    parts = [part for part in parts if part.images.files]
    tests = ("test",) if any(part.split == "test" for part in parts) else ("validation",)
    groups: dict[tuple[bool, str], list[Part]]
    groups = {(test, domain): [] for test in (False, True) for domain in domains}
    for part in parts:
        groups[part.split in tests, part.domain].append(part)
    splits = [_joined(group) for group in groups.values()]
    if not any(split.files for split in splits[: len(domains)]):
        raise BadInput(f"there are no training images: {remedy}")
    train, test = splits[: len(domains)], splits[len(domains) :]
    name = f"{title}{look.name}"
    made = arrays(name, train, test, look.size, look.colors, remedy, truncated, look.fit)
    dataset = Dataset(**made, classes=tuple(classes), domains=tuple(domains))
    return _with_users(dataset, [part for group in groups.values() for part in group])


def _joined(parts: Sequence[Part]) -> Split:
    return Split(
        [file for part in parts for file in part.images.files],
        [label for part in parts for label in part.images.labels],
    )


def _with_users(dataset: Dataset, parts: Sequence[Part]) -> Dataset:
    """The dataset with the users of these parts; its examples are in the order of the parts."""
    users = sorted_names({part.user for part in parts})
    if users == ("",):
        return dataset
    each = positions([part.user for part in parts], users)
    client = np.repeat(each, [len(part.images.files) for part in parts])
    return dataset._replace(client=client, users=users)
