"""Office-Caltech-10 (Gong et al. 2012) in FedBN's split: four sites, ten classes."""

import numpy as np

from fedjax_lab.data.dataset import Dataset, first_of_each
from fedjax_lab.data.domain_folders import Release, read
from fedjax_lab.data.images import check_size, decoded
from fedjax_lab.data.places import told
from fedjax_lab.errors import check_choice

BY_HAND = (
    "fetch office_caltech_10_dataset.zip, which the README of https://github.com/med-air/FedBN"
    " links, unpack it and name the folder office_caltech_10 with amazon/, caltech/, dslr/, webcam/"
    " and amazon_train.pkl, amazon_test.pkl .. by --config.data.folder (or put it in"
    " ~/.cache/fedjax_lab)"
)
RELEASE = Release(
    name="office_caltech-v1",
    folder="office_caltech_10",
    domains=("amazon", "caltech", "dslr", "webcam"),
    classes=(
        "back_pack",
        "bike",
        "calculator",
        "headphones",
        "keyboard",
        "laptop_computer",
        "monitor",
        "mouse",
        "mug",
        "projector",
    ),
    remedy=told("office_caltech", BY_HAND),
)
SAMPLINGS = {
    "fedpick": lambda labels: np.arange(min(125, len(labels))),
    "fedc2i": lambda labels: first_of_each(labels, 20),
}


@decoded
def office_caltech(*, folder: str = "", size: int = 256, sampling: str = "fedpick") -> Dataset:
    """Office-Caltech-10: images [R, size, size, 3] of amazon, caltech, dslr and webcam.

    `sampling` is of the training lists: "fedpick" the first 125 images of a site, "fedc2i" the
    first 20 of each class there (200, 200, 125, 197). All test images: 192, 225, 32, 59.
    `folder` and the cache: as `domain_folders.read` and `images.decoded` say. Raises BadInput for
    what is missing or damaged.
    """
    check_choice("data.sampling", sampling, SAMPLINGS)
    check_size(size)
    return read(RELEASE, folder, size, SAMPLINGS[sampling])
