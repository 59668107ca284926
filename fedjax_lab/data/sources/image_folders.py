"""Images in folders: PACS, VLCS and Office-Home as DOMAIN/CLASS/IMAGE, and folders of your own.

DomainBed's script domainbed/scripts/download.py fetches the three data sets. They have no test
split: in domain generalization, the test set is an unseen domain (config.data.unseen), and
validation examples (config.partition.validation) are held out of each client's examples.
config.data.test draws a test set at random, as it is done for folders of your own without one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_lab.data import held_out, places
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import Side
from fedjax_lab.data.formats import layouts
from fedjax_lab.data.formats.image_parts import Color, Fit, Part, gather, kind_of_split, make_look
from fedjax_lab.data.formats.images import Look, class_images, image_source, subfolders
from fedjax_lab.data.safe import Fault

VERSION = 1  # of the pixels; increment it with every change that alters a pixel
ENDINGS = (".jpg", ".jpeg", ".png")  # of the published data sets, in upper or lower case
REMEDY = (
    "config.data.folder takes a folder with DOMAIN/CLASS/IMAGE, CLASS/IMAGE, or train/CLASS/IMAGE"
    " and test/CLASS/IMAGE; set config.data.layout for other layouts"
)


class Published(NamedTuple):
    """The names of a published data set and of its folders."""

    name: str
    folders: tuple[str, ...]  # possible folders of its domains
    domains: tuple[str, ...]  # case, blanks and underscores of the folders may differ


PACS = Published(
    "PACS",
    ("PACS", "PACS/kfold", "pacs", "kfold"),
    ("art_painting", "cartoon", "photo", "sketch"),
)
VLCS = Published("VLCS", ("VLCS", "vlcs"), ("Caltech101", "LabelMe", "SUN09", "VOC2007"))
OFFICE_HOME = Published(
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


@image_source(places.fetched_by_hand("pacs"))
def pacs(*, folder: str = "", size: Side = 32) -> Dataset:
    """PACS (Li et al. 2017): images [size, size, 3] of 7 classes.

    folder: the folder with the domains, or one with a folder PACS (or PACS/kfold) that has them;
        empty: ~/.cache/fedjax_lab and data/ are searched.
    size: the side of an image in pixels.

    The domains are 2,048 art paintings, 2,344 cartoons, 1,670 photographs and 3,929 sketches. As in
    all data sources of this module, the resized images are cached in $FEDJAX_LAB_CACHE, else in
    ~/.cache/fedjax_lab, until a file changes, and truncated files are read as far as possible.
    """
    return _published(PACS, folder, size)


@image_source(places.fetched_by_hand("vlcs"))
def vlcs(*, folder: str = "", size: Side = 32) -> Dataset:
    """VLCS (Fang et al. 2013): images [size, size, 3] of 5 classes.

    folder, size: as in `pacs`.

    The domains are 1,415 images of Caltech-101, 2,656 of LabelMe, 3,282 of SUN09 and 3,376 of
    VOC2007.
    """
    return _published(VLCS, folder, size)


@image_source(places.fetched_by_hand("office_home"))
def office_home(*, folder: str = "", size: Side = 32) -> Dataset:
    """Office-Home (Venkateswara et al. 2017): images [size, size, 3] of 65 classes.

    folder, size: as in `pacs`.

    The domains are 2,427 images of Art, 4,365 of Clipart, 4,439 of Product and 4,357 of Real World.
    """
    return _published(OFFICE_HOME, folder, size)


@image_source(REMEDY)
def image_folders(
    *,
    folder: str,
    size: Side = 32,
    layout: str = "auto",
    color: Color = "rgb",
    resize: Fit = "stretch",
    unseen: str = "",
) -> Dataset:
    """Images of your own in nested folders: images [size, size, 3 or 1].

    folder: the folder of the data set.
    size: the side of an image in pixels.
    layout: what the levels of folders stand for, such as domain/class; auto recognizes
        DOMAIN/CLASS/IMAGE, CLASS/IMAGE, SPLIT/CLASS/IMAGE, DOMAIN/SPLIT/CLASS/IMAGE and
        SPLIT/DOMAIN/CLASS/IMAGE, where SPLIT is train, test, val or the like. A level client has
        the natural users, as in client/class. Validation images are test examples if there is no
        test split, and training examples otherwise.
    color: rgb or gray.
    resize: stretch scales both sides to the size; crop scales the largest centered square; pad
        scales the whole image and centers it in a black square.
    unseen: config.data.unseen. Without it and without test images, a random fifth of each user's
        images, or of each class in each domain, is the test set, unless config.data.test draws
        another.

    Domains, classes and users are sorted by name. Each domain must have training images of every
    class, unless there are natural users. File names end in one of `layouts.ENDINGS`; of an
    animation the first image is used. All else is as in `pacs`.
    """
    look = make_look(size, color, resize)
    where = places.folder_of(places.path_of(folder, REMEDY, "folder"))
    holders = layouts.find(where, layout)
    domains = sorted({_domain(holder) for holder in holders})
    made = _read("image_folders", holders, domains, look, layouts.ENDINGS)
    return made if made.test.any() or unseen else held_out.with_share(made)


def _published(published: Published, folder: str, size: int) -> Dataset:
    folders = zip(find_domains(published, folder), published.domains, strict=True)
    holders = [layouts.Holder(folder, {"domain": domain}) for folder, domain in folders]
    title = published.folders[0].lower()
    return _read(title, holders, published.domains, Look(size), ENDINGS)


def find_domains(published: Published, folder: str) -> list[Path]:
    """The folders of all domains, in the first place that has them.

    Raises a Fault if no place has them.
    """
    around = places.searched(folder)
    problem = f"no {published.name} in {' or '.join(map(str, around))}"
    for where in (place / name for place in around for name in ("", *published.folders)):
        there = {_letters(path.name): path for path in subfolders(where)}
        by_domain = {name: there.get(_letters(name)) for name in published.domains}
        paths = [path for path in by_domain.values() if path is not None]
        if len(paths) == len(published.domains):
            return paths
        if paths:
            missing = next(name for name, path in by_domain.items() if path is None)
            problem = f"{where} has no folder {missing}"
    raise Fault(problem)


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _read(
    title: str,
    holders: Sequence[layouts.Holder],
    domains: Sequence[str],
    look: Look,
    endings: Sequence[str],
) -> Dataset:
    """The images in these folders, ordered by domain, class and file name."""
    if not holders:
        raise Fault("there are no folders of domains")
    classes = sorted({p.name for each in holders for p in subfolders(each.folder)})
    if not classes:
        raise Fault(f"{holders[0].folder} has no folders of classes")
    parts = [_part(holder, classes, endings) for holder in holders]
    look = look._replace(truncated=True)
    return gather(f"{title}-v{VERSION}", parts, classes, domains, look)


def _part(holder: layouts.Holder, classes: Sequence[str], endings: Sequence[str]) -> Part:
    """The images of a folder. Raises a Fault if a required class has no images."""
    folder, levels = holder
    split = kind_of_split(levels.get("split", "train"), folder)
    required = split == "train" and "client" not in levels
    images = class_images([folder / name for name in classes], endings, required)
    return Part(images, _domain(holder), split, levels.get("client", ""))


def _domain(holder: layouts.Holder) -> str:
    return holder.levels.get("domain", "image_folders")
