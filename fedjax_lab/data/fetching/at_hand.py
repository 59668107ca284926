"""Checks whether the files of a data set are on this machine, without reading them."""

from pathlib import Path

from fedjax_lab.data.places import locate
from fedjax_lab.data.sources import (
    cifar,
    cinic10,
    digits_five,
    domainnet,
    emnist,
    gtsrb,
    idx,
    image_folders,
    k49,
    medmnist,
    office_caltech,
    shakespeare,
    svhn,
    text_sets,
)
from fedjax_lab.errors import BadInput


def has_files(name: str, folder: str) -> bool:
    """Whether the first file of the data set `name` exists; False if the name is in no table below.

    folder: where to look; if empty, ~/.cache/fedjax_lab and data/.
    """
    look = FIRST.get(name) or OTHERS.get(name)
    try:
        return look is not None and bool(look(folder))
    except BadInput:
        return False


def _idx(release):
    return lambda folder: _has_idx(release, folder, idx.FILES)


def _has_idx(release, folder, names):
    where = idx.find_folder(release, folder, names)
    return all(idx.find(where, name) for name in names)


def _emnist(folder):
    """Whether the files of any split exist."""
    return any(_has_idx(emnist.release(s), folder, emnist.files(s)) for s in emnist.SPLITS)


def _cifar(release):
    first = release.train[0]
    return _file(first, f"{release.folder}/{first}", release.archive)


def _file(*names):
    return lambda folder: locate(folder, names, "")


def _release(release):
    first = release.domains[0]
    names = (first, f"{release.folder}/{first}")
    return lambda folder: locate(folder, names, "", Path.is_dir)


def _published(published):
    return lambda folder: image_folders.find_domains(published, folder, "")


FIRST = {
    "mnist": _idx(idx.MNIST),
    "kmnist": _idx(idx.KMNIST),
    "fashion_mnist": _idx(idx.FASHION),
    "emnist": _emnist,
    "k49": _file(k49.FILES[0], f"k49/{k49.FILES[0]}"),
    "cinic10": lambda folder: locate(folder, cinic10.PROBES, "", Path.is_dir),
    "gtsrb": lambda folder: locate(folder, gtsrb.PROBES, "", Path.is_dir),
    "cifar10": _cifar(cifar.CIFAR10),
    "cifar100": _cifar(cifar.CIFAR100),
    "svhn": _file(svhn.FILES[0], f"svhn/{svhn.FILES[0]}"),
    "tiny_imagenet": _file("wnids.txt", "tiny-imagenet-200/wnids.txt"),
    "digits_five": _file(*sum(digits_five.PROBES.values(), [])),
    "office_caltech": _release(office_caltech.RELEASE),
    "domainnet": _release(domainnet.RELEASE),
    "domainnet_full": _file(*domainnet.LISTS),
    "shakespeare": shakespeare.find,
    "ag_news": _file(f"ag_news/{text_sets.AG_NEWS_FILES[0]}", text_sets.AG_NEWS_FILES[0]),
    "sentiment140": _file(
        f"sentiment140/{text_sets.SENTIMENT140_FILES[0]}", text_sets.SENTIMENT140_FILES[0]
    ),
    "pacs": _published(image_folders.PACS),
    "vlcs": _published(image_folders.VLCS),
    "office_home": _published(image_folders.OFFICE_HOME),
}
OTHERS = {  # data sets whose data source has another name
    name: _file(*medmnist.names(name)) for name in medmnist.CLASSES
}
