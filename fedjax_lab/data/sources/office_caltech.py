"""Office-Caltech-10 (Gong et al. 2012) in FedBN's split: four domains, ten classes."""

from typing import Annotated

import numpy as np

from fedjax_lab.data.dataset import Dataset, first_of_each
from fedjax_lab.data.declared import Side
from fedjax_lab.data.formats.images import image_source
from fedjax_lab.data.places import fetched_by_hand
from fedjax_lab.data.sources._domain_folders import Release, read
from fedjax_lab.ranges import OneOf

RELEASE = Release(
    name="office_caltech-v1",
    folder="office_caltech_10",
    domains=("amazon", "caltech", "dslr", "webcam"),
    classes=tuple(
        "back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug "
        "projector".split()
    ),
)
SAMPLINGS = {
    "fedpick": lambda labels: np.arange(min(125, len(labels))),
    "fedc2i": lambda labels: first_of_each(labels, 20),
}


@image_source(fetched_by_hand("office_caltech"))
def office_caltech(
    *, folder: str = "", size: Side = 256, sampling: Annotated[str, OneOf(SAMPLINGS)] = "fedpick"
) -> Dataset:
    """Office-Caltech-10: images [R, size, size, 3] of amazon, caltech, dslr and webcam.

    folder: the folder of the data set, or its parent; empty: ~/.cache/fedjax_lab and data/ are
        searched.
    size: the side of an image in pixels.
    sampling: the images of the training lists that are used: fedpick: the first 125 of each domain;
        fedc2i: the first 20 of each class in each domain (200, 200, 125, 197).

    The test set has all test images: 192, 225, 32 and 59. Decoded images are cached as in
    `images.decoded`.
    """
    return read(RELEASE, folder, size, SAMPLINGS[sampling])
