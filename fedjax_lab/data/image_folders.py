"""Sets of several domains as folders of images, DOMAIN/CLASS/IMAGE: PACS, VLCS, Office-Home, own.

DomainBed's script domainbed/scripts/download.py fetches the three. There is no test split: in
domain generalization all of an unseen domain (config.data.unseen) is the test, and validation rows
(config.partition.validation) are held out of each client's examples.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_lab.data import places
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.images import Split, arrays, check_size, decoded, rgb
from fedjax_lab.errors import BadInput

VERSION = 1  # of the pixels: to be raised with every change that alters one
ENDINGS = (".jpg", ".jpeg", ".png")  # in any case


class Published(NamedTuple):
    """What a published set is called."""

    source: str  # the function that reads it
    name: str
    folders: tuple[str, ...]  # that hold its domains
    domains: tuple[str, ...]  # a folder may be written with other case, blanks or underscores


PACS = Published(
    "pacs",
    "PACS",
    ("PACS", "PACS/kfold", "pacs", "kfold"),
    ("art_painting", "cartoon", "photo", "sketch"),
)
VLCS = Published(
    "vlcs",
    "VLCS",
    ("VLCS", "vlcs"),
    ("Caltech101", "LabelMe", "SUN09", "VOC2007"),
)
OFFICE_HOME = Published(
    "office_home",
    "Office-Home",
    (
        "office_home",
        "office_home/OfficeHomeDataset_10072016",
        "OfficeHomeDataset_10072016",
        "OfficeHome",
        "officehome",
    ),
    ("Art", "Clipart", "Product", "Real World"),
)


@decoded
def pacs(*, folder: str = "", size: int = 32) -> Dataset:
    """PACS (Li et al. 2017): images [size, size, 3] of 7 classes.

    2,048 art paintings, 2,344 cartoons, 1,670 photographs, 3,929 sketches. `folder` holds the
    domains or is the one around it; without it the usual places are searched. As for every source
    here, the images are shrunk once and kept in $FEDJAX_LAB_CACHE, else in ~/.cache/fedjax_lab,
    until names or sizes of files change; files that end too early are read as far as they go.
    Raises BadInput for what is missing or damaged.
    """
    return _published(PACS, folder, size)


@decoded
def vlcs(*, folder: str = "", size: int = 32) -> Dataset:
    """VLCS (Fang et al. 2013): images [size, size, 3] of 5 classes.

    1,415 of Caltech-101, 2,656 of LabelMe, 3,282 of SUN09, 3,376 of VOC2007; otherwise as `pacs`.
    """
    return _published(VLCS, folder, size)


@decoded
def office_home(*, folder: str = "", size: int = 32) -> Dataset:
    """Office-Home (Venkateswara et al. 2017): images [size, size, 3] of 65 classes.

    2,427 of Art, 4,365 of Clipart, 4,439 of Product, 4,357 of Real World; otherwise as `pacs`.
    """
    return _published(OFFICE_HOME, folder, size)


@decoded
def image_folders(*, folder: str, size: int = 32) -> Dataset:
    """A set of one's own, `folder`/DOMAIN/CLASS/IMAGE: images [size, size, 3], .jpg or .png.

    Domains and classes are sorted by name; every domain has every class. Otherwise as `pacs`.
    """
    remedy = "config.data.folder takes a folder with DOMAIN/CLASS/IMAGE"
    where = Path(folder).expanduser()
    if not folder or not where.is_dir():
        raise BadInput(f"{folder or 'an empty name'} is not a folder: {remedy}")
    domains = _subfolders(where)
    return _read("image_folders", domains, [domain.name for domain in domains], size, remedy)


def _published(published: Published, folder: str, size: int) -> Dataset:
    remedy = places.told(published.source, by_hand(published))
    domains = find_domains(published, folder, remedy)
    return _read(published.folders[0].lower(), domains, published.domains, size, remedy)


def by_hand(published: Published) -> str:
    """What to do to have this data set."""
    return (
        f"fetch {published.name} as DomainBed's script domainbed/scripts/download.py does and name"
        f" the folder with {', '.join(published.domains)} (in each CLASS/IMAGE) by"
        f" --config.data.folder (or put it in ~/.cache/fedjax_lab/{published.folders[0]})"
    )


def find_domains(published: Published, folder: str, remedy: str) -> list[Path]:
    """The folders of all domains, in the first place that has them."""
    around = [Path(place).expanduser() for place in ([folder] if folder else places.PLACES)]
    problem = f"no {published.name} in {' or '.join(map(str, around))}"
    for where in (place / name for place in around for name in ("", *published.folders)):
        there = {_letters(path.name): path for path in _subfolders(where)}
        by_domain = {name: there.get(_letters(name)) for name in published.domains}
        paths = [path for path in by_domain.values() if path is not None]
        if len(paths) == len(published.domains):
            return paths
        if paths:
            missing = next(name for name, path in by_domain.items() if path is None)
            problem = f"{where} has no folder {missing}"
    raise BadInput(f"{problem}: {remedy}")


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _read(
    title: str, folders: Sequence[Path], domains: Sequence[str], size: int, remedy: str
) -> Dataset:
    """The images of these domains, domain after domain, class after class, by name of file."""
    check_size(size)
    if not folders:
        raise BadInput(f"there are no folders of domains: {remedy}")
    classes = tuple(sorted({path.name for folder in folders for path in _subfolders(folder)}))
    groups = [_images(folder, classes, remedy) for folder in folders]
    nothing = [Split([], [])] * len(groups)
    made = arrays(f"{title}-v{VERSION}", groups, nothing, size, rgb, remedy, truncated=True)
    return Dataset(**made, classes=classes, domains=tuple(domains))


def _images(folder: Path, classes: Sequence[str], remedy: str) -> Split:
    """The image files of a domain; BadInput where it lacks a class."""
    files, labels = [], []
    if not classes:
        raise BadInput(f"{folder} has no folders of classes: {remedy}")
    for label, name in enumerate(classes):
        images = [path for path in _visible(folder / name) if path.suffix.lower() in ENDINGS]
        if not images:
            kinds = ", ".join(ENDINGS)
            raise BadInput(f"{folder / name} has no images ({kinds}), but is a class: {remedy}")
        files += images
        labels += [label] * len(images)
    return Split(files, labels)


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in _visible(folder) if path.is_dir()]


def _visible(folder: Path) -> list[Path]:
    """What a folder holds, by name; without hidden files and what macOS leaves in archives."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX")))
