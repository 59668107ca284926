"""Groups of image files with the same domain, user and split, and the dataset made of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats.columns import positions, sorted_names
from fedjax_lab.data.formats.images import COLORS, FITS, Look, Split, image_dataset, upright
from fedjax_lab.data.safe import Fault
from fedjax_lab.errors import quoted
from fedjax_lab.ranges import OneOf

SPLITS = {  # usual names of a split: its kind
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
}


def kind_of_split(name: str, where: Path) -> str:
    """The kind of the split of this name. Raises a Fault if it is none of SPLITS."""
    if name.lower() not in SPLITS:
        raise Fault(f"{where}: {quoted(name)} is not one of the splits {', '.join(SPLITS)}")
    return SPLITS[name.lower()]


class Part(NamedTuple):
    """Image files with the same domain, split and user."""

    images: Split
    domain: str
    split: str = "train"  # or "test", or "validation"
    user: str = ""


Color = Annotated[str, OneOf(COLORS)]
Fit = Annotated[str, OneOf(FITS)]


def make_look(size: int, color: str, resize: str) -> Look:
    """The look for these settings of a config, which must be valid."""

    def fit(image, size):  # pictures of one's own may be photographs from a camera
        return FITS[resize](upright(image), size)

    named = (each for each in (color, resize) if each not in ("rgb", "stretch"))
    return Look(size, COLORS[color], fit, "".join(f"-{each}" for each in named))


def gather(
    title: str, parts: Sequence[Part], classes: Sequence[str], domains: Sequence[str], look: Look
) -> Dataset:
    """The dataset of these parts, training examples first, by domain; see `image_dataset`.

    Validation images are test examples if there are no test images, and training examples
    otherwise. Parts without images are left out. Raises a Fault if there are no training images.
    """
    parts = [part for part in parts if part.images]
    tests = ("test",) if any(part.split == "test" for part in parts) else ("validation",)
    groups: dict[tuple[bool, str], list[Part]]
    groups = {(test, domain): [] for test in (False, True) for domain in domains}
    for part in parts:
        groups[part.split in tests, part.domain].append(part)
    splits = [[image for part in group for image in part.images] for group in groups.values()]
    train, test = splits[: len(domains)], splits[len(domains) :]
    if not any(train):
        raise Fault("there are no training images")
    dataset = image_dataset(title, train, test, look, classes, domains)
    return _with_users(dataset, [part for group in groups.values() for part in group])


def _with_users(dataset: Dataset, parts: Sequence[Part]) -> Dataset:
    """The dataset with the users of these parts; its examples are in the order of the parts."""
    users = sorted_names({part.user for part in parts})
    if users == ("",):
        return dataset
    each = positions([part.user for part in parts], users)
    client = np.repeat(each, [len(part.images) for part in parts])
    return dataset._replace(client=client, users=users)
