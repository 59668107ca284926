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


def _file(*names, kind=Path.is_file):
    return lambda folder: locate(folder, names, "", kind)


def _release(release):
    first = release.domains[0]
    return _file(first, f"{release.folder}/{first}", kind=Path.is_dir)


def _text(name, files):
    return _file(f"{name}/{files[0]}", files[0])


def _published(published):
    return lambda folder: image_folders.find_domains(published, folder, "")


FIRST = {
    "mnist": _idx(idx.MNIST),
    "kmnist": _idx(idx.KMNIST),
    "fashion_mnist": _idx(idx.FASHION),
    "emnist": _emnist,
    "k49": _file(*k49.PROBES),
    "cinic10": _file(*cinic10.PROBES, kind=Path.is_dir),
    "gtsrb": _file(*gtsrb.PROBES, kind=Path.is_dir),
    "cifar10": _cifar(cifar.CIFAR10),
    "cifar100": _cifar(cifar.CIFAR100),
    "svhn": _file(*svhn.PROBES),
    "tiny_imagenet": _file(*tiny_imagenet.PROBES),
    "digits_five": _file(*sum(digits_five.PROBES.values(), [])),
    "office_caltech": _release(office_caltech.RELEASE),
    "domainnet": _release(domainnet.RELEASE),
    "domainnet_full": _file(*domainnet.LISTS),
    "shakespeare": shakespeare.find,
    "ag_news": _text("ag_news", text_sets.AG_NEWS_FILES),
    "sentiment140": _text("sentiment140", text_sets.SENTIMENT140_FILES),
    "pacs": _published(image_folders.PACS),
    "vlcs": _published(image_folders.VLCS),
    "office_home": _published(image_folders.OFFICE_HOME),
    **{name: _file(*medmnist.names(name)) for name in medmnist.CLASSES},
}
