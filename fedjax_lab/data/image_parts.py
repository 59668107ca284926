"""Image files in groups that share domain, user and split, and the Dataset that they make."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.images import COLORS, FITS, Split, arrays, check_size, rgb, stretch
from fedjax_lab.errors import BadInput, check_choice

SPLITS = {  # how people call a split: what it is
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
}


class Part(NamedTuple):
    """Image files that share all but their labels."""

    images: Split
    domain: str
    split: str = "train"  # or "test", or "validation"
    user: str = ""


class Look(NamedTuple):
    """How the images of files become those of a dataset."""

    size: int  # of a side, in pixels
    colors: Callable = rgb
    fit: Callable = stretch
    name: str = ""  # in the cache; of the look that all sources had first it is empty


def make_look(size: int, color: str, resize: str) -> Look:
    """The look that settings of a config ask for; BadInput for a value that there is not."""
    check_size(size)
    check_choice("data.color", color, COLORS)
    check_choice("data.resize", resize, FITS)
    named = (each for each in (color, resize) if each not in ("rgb", "stretch"))
    return Look(size, COLORS[color], FITS[resize], "".join(f"-{each}" for each in named))


def gather(
    title: str,
    parts: Sequence[Part],
    classes: Sequence[str],
    domains: Sequence[str],
    look: Look,
    remedy: str,
    truncated: bool = False,
) -> Dataset:
    """The dataset of these parts, training examples first, domain after domain; x is lazy.

    Validation images are test examples where there are no test images, or else training examples.

    Args:
      title: what is in x is called this in the cache.
      parts: the image files.
      classes: the names of the labels.
      domains: the names of the domains, in their order.
      look: how images become those in x.
      remedy: how to get the files, for messages.
      truncated: files that end too early are read as far as they go.

    Raises:
      BadInput: there are no training images; a file is missing, or, once it is decoded, damaged.
    """
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
    """The dataset with the users of these parts, whose images its examples are, in their order."""
    users = sorted_names({part.user for part in parts})
    if users == [""]:
        return dataset
    number = {user: index for index, user in enumerate(users)}
    each = np.array([number[part.user] for part in parts], np.int32)
    client = np.repeat(each, [len(part.images.files) for part in parts])
    return dataset._replace(client=client, users=tuple(users))


def sorted_names(names: set[str]) -> list[str]:
    """The names in order: by value if all are whole numbers, or else by letters."""
    if all(name.isascii() and name.isdigit() and len(name) < 20 for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)
