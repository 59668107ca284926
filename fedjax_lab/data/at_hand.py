"""Whether the files of a data set are there, without reading them."""

from pathlib import Path

from fedjax_lab.data import (
    cifar,
    digits_five,
    domainnet,
    idx,
    image_folders,
    office_caltech,
    shakespeare,
    svhn,
    text_sets,
)
from fedjax_lab.data.places import locate
from fedjax_lab.errors import BadInput


def has_files(name: str, folder: str) -> bool:
    """Whether the source `name` finds its first file; False for one that is not in FIRST."""
    try:
        return name in FIRST and bool(FIRST[name](folder))
    except BadInput:
        return False


def _fashion_mnist(folder):
    return any(
        all(idx.find(place, name) for name in idx.FILES) for place in idx.fashion_places(folder)
    )


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
    "fashion_mnist": _fashion_mnist,
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
