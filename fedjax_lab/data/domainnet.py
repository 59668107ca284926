"""DomainNet (Peng et al. 2019) in FedBN's split: six domains, ten of its 345 classes."""

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.domain_folders import Release, read
from fedjax_lab.data.images import check_size

RELEASE = Release(
    "domainnet-v1",
    "DomainNet",
    ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    (
        "bird",
        "feather",
        "headphones",
        "ice_cream",
        "teapot",
        "tiger",
        "whale",
        "windmill",
        "wine_glass",
        "zebra",
    ),
    "fetch domainnet_dataset.zip and the six domains, which the README of"
    " https://github.com/med-air/FedBN links, unpack them and name the folder DomainNet with"
    " clipart/, infograph/, painting/, quickdraw/, real/, sketch/ and clipart_train.pkl,"
    " clipart_test.pkl .. (or these in split/) by --config.data.folder (or put it in"
    " ~/.cache/fedjax_lab)",
)
TRAINING = 500  # images of a domain in FedPick


def domainnet(*, folder: str = "", size: int = 256) -> Dataset:
    """DomainNet: images [R, size, size, 3] of ten classes in six domains, as FedPick has them.

    The first 500 images of each training list, all test images: 526, 657, 619, 1000, 1217, 554.
    `folder` and the cache: as `domain_folders.read` and `images.arrays` say. Raises BadInput for
    what is missing or damaged.
    """
    check_size(size)
    return read(RELEASE, folder, size, lambda labels: np.arange(min(TRAINING, len(labels))))
