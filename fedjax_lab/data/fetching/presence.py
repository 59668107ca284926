"""Checks whether the files of a data set are on this machine, without reading them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedjax_lab.data.sources import (
    _domain_folders,
    cifar,
    cinic10,
    digits_five,
    domainnet,
    emnist,
    gtsrb,
    heart_disease,
    idx,
    image_folders,
    instruction_set,
    k49,
    medmnist,
    office_caltech,
    shakespeare,
    svhn,
    text_sets,
    tiny_imagenet,
)
from fedjax_lab.errors import BadInput


def has_files(name: str, folder: str) -> bool:
    """Whether the first file of the data set `name` exists; False if the name is not in FIRST.

    folder: where to look; if empty, ~/.cache/fedjax_lab and data/.
    """
    try:
        return name in FIRST and bool(FIRST[name](folder))
    except BadInput:
        return False


def _emnist(folder):
    """Whether the files of any split exist."""
    return any(idx.has_files(emnist.release(s), folder, emnist.files(s)) for s in emnist.SPLITS)


# What finds the files: (folder) -> their path. It raises BadInput if there are none.
FIRST: dict[str, Callable[[str], Path | list[Path] | bool]] = {
    "mnist": partial(idx.has_files, idx.MNIST),
    "kmnist": partial(idx.has_files, idx.KMNIST),
    "fashion_mnist": partial(idx.has_files, idx.FASHION),
    "emnist": _emnist,
    "k49": k49.find,
    "cinic10": cinic10.find,
    "gtsrb": gtsrb.find,
    "cifar10": partial(cifar.find, cifar.CIFAR10),
    "cifar100": partial(cifar.find, cifar.CIFAR100),
    "svhn": svhn.find,
    "tiny_imagenet": tiny_imagenet.find,
    "digits_five": digits_five.find,
    "heart_disease": heart_disease.find,
    "office_caltech": partial(_domain_folders.find, office_caltech.RELEASE),
    "domainnet": partial(_domain_folders.find, domainnet.RELEASE),
    "domainnet_full": domainnet.find_full,
    "shakespeare": shakespeare.find,
    "ag_news": partial(text_sets.find, "ag_news", text_sets.AG_NEWS_FILES[0]),
    "sentiment140": partial(text_sets.find, "sentiment140", text_sets.SENTIMENT140_FILES[0]),
    "pacs": partial(image_folders.find_domains, image_folders.PACS),
    "vlcs": partial(image_folders.find_domains, image_folders.VLCS),
    "office_home": partial(image_folders.find_domains, image_folders.OFFICE_HOME),
    **{name: partial(medmnist.find, name) for name in medmnist.CLASSES},
    **{name: partial(instruction_set.find, name) for name in instruction_set.SETS},
}
