"""EMNIST (Cohen et al. 2017, arXiv:1702.05373): handwritten digits and letters in MNIST's format.

Format: https://www.nist.gov/itl/products-and-services/emnist-dataset. In the published files each
image is transposed, and the labels of the split "letters" begin with 1. Here the images are upright
and all labels begin with 0.
"""

import string
from typing import Annotated

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.sources import idx
from fedjax_lab.ranges import OneOf

LETTERS = string.ascii_uppercase + string.ascii_lowercase
MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"  # others merge with their capitals
SPLITS = {  # the classes of each split, in the order of their labels
    "byclass": string.digits + LETTERS,
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": string.ascii_uppercase,  # with the lowercase letters merged
    "digits": string.digits,
    "mnist": string.digits,
}
FIRST_LABEL = {"letters": 1}  # in the files; 0 for the other splits
FOLDERS = ("emnist", "emnist/gzip", "EMNIST/raw", "EMNIST", "gzip")


@source(idx.remedy_of("emnist"))
def emnist(*, folder: str = "", split: Annotated[str, OneOf(SPLITS)] = "balanced") -> Dataset:
    """EMNIST split: upright images [R, 28, 28, 1], training examples first.

    folder: the folder with the files, or with a folder emnist (or torchvision's EMNIST/raw); empty:
        ~/.cache/fedjax_lab and data/ are searched.
    split: byclass (62 classes, 697,932 + 116,323 images), bymerge (47 classes, the same images),
        balanced (47 classes, 112,800 + 18,800), letters (26 classes, 124,800 + 20,800), digits
        (240,000 + 40,000) or mnist (60,000 + 10,000).
    """
    chosen, names = release(split), files(split)
    where = idx.find_folder(chosen, folder, names)
    first = np.int32(FIRST_LABEL.get(split, 0))
    train, test = (
        (np.ascontiguousarray(x.transpose(0, 2, 1, 3)), y - first)
        for x, y in idx.read(where, names)
    )
    return idx.as_dataset(where, (train, test), chosen)


def release(split: str) -> idx.Release:
    """The description of a split, with the folders in which its files are searched."""
    return idx.Release("emnist", f"EMNIST {split}", tuple(SPLITS[split]), FOLDERS)


def files(split: str) -> tuple[str, ...]:
    """The names of the four files of a split."""
    return idx.files(f"emnist-{split}-", test="test")
