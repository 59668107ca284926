"""Layouts of image folders, such as DOMAIN/CLASS/IMAGE or train/CLASS/IMAGE."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedjax_lab.data.formats.image_parts import SPLITS
from fedjax_lab.data.formats.images import images_in, subfolders
from fedjax_lab.data.safe import Fault
from fedjax_lab.errors import BadInput, quoted

LEVELS = ("class", "client", "domain", "split")  # what a folder may stand for
USUAL = "class", "domain/class", "split/class", "domain/split/class", "split/domain/class"
DEEPEST = 3  # levels of folders that are searched for images
# Extensions of image files, in upper or lower case.
ENDINGS = ".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".webp", ".tif", ".tiff", ".gif"


class Holder(NamedTuple):
    """A folder that has a folder for each class."""

    folder: Path
    levels: dict[str, str]  # {level: name} for the levels domain, client and split of the layout


def find(root: Path, layout: str) -> list[Holder]:
    """The folders under `root` that hold the folders of the classes, sorted by name.

    Args:
      root: the folder of the whole data set.
      layout: what the levels of folders stand for, such as "domain/class"; "auto" recognizes it.

    Raises:
      BadInput: the layout is invalid, or cannot be recognized.
    """
    *above, _ = recognize(root) if layout == "auto" else parse(layout)
    folders: list[tuple[Path, tuple[str, ...]]] = [(root, ())]
    for _ in above:
        folders = [(sub, (*up, sub.name)) for at, up in folders for sub in subfolders(at)]
    holders = [Holder(folder, dict(zip(above, names, strict=True))) for folder, names in folders]
    return [holder for holder in holders if _counts(holder)]


def _counts(holder: Holder) -> bool:
    """Whether to read the folder: it belongs to a known split, or has images."""
    if holder.levels.get("split", "train").lower() in SPLITS:
        return True
    return any(images_in(folder, ENDINGS) for folder in subfolders(holder.folder))


def parse(layout: str) -> list[str]:
    """The levels of a layout in a config. Raises BadInput if it is invalid."""
    levels = layout.split("/")
    if levels[-1] != "class" or len(set(levels)) < len(levels) or not set(levels) <= {*LEVELS}:
        raise BadInput(
            f"config.data.layout cannot be {quoted(layout)}; set it to auto, or list the levels of"
            f" folders: any of {', '.join(LEVELS[1:])}, then class, as in {', '.join(USUAL[:3])}"
        )
    return levels


def recognize(root: Path) -> list[str]:
    """The levels of the folders under `root`, recognized by their names.

    A level consists of splits if all its names are names of splits, such as train, test and valid.
    The other levels are classes, or domains and then classes; so they are if there are no images.
    Raises BadInput if images are on different levels, or if the names are ambiguous, for example if
    a folder beside train and test is not named like a split.
    """
    names = list(_with_images(root))
    depths = sorted({len(each) for each in names})
    if len(depths) > 1:
        few, many = ("/".join(next(n for n in names if len(n) == d)) for d in depths[:2])
        raise Fault(
            f"{root} has images in {few} and in {many}; specify the layout, for example with"
            " --config.data.layout=class or --config.data.layout=domain/class"
        )
    levels = [{name.lower() for name in level} for level in zip(*names, strict=True)]
    for level in levels[:-1]:
        _check_not_mixed(root, level)
    are_splits = [level <= SPLITS.keys() for level in levels]
    for layout in (each.split("/") for each in USUAL):
        if [name == "split" for name in layout] == are_splits:
            return layout
    if not levels:
        return ["domain", "class"]
    raise Fault(
        f"{root}: it is not clear what the folders {'/'.join(names[0])} stand for; specify the"
        " layout, for example with --config.data.layout=domain/split/class"
    )


def _check_not_mixed(root: Path, level: set[str]) -> None:
    """Raises BadInput if only some folders of a level are named like splits."""
    splits, others = sorted(level & SPLITS.keys()), sorted(level - SPLITS.keys())
    if splits and others:
        raise BadInput(
            f"{root}: {splits[0]} is named like a split, but {quoted(others[0])} beside it is none"
            f" of {', '.join(SPLITS)}; move it elsewhere, or set --config.data.layout=domain/class"
            " if these are domains"
        )


def _with_images(root: Path) -> Iterator[tuple[str, ...]]:
    """The path, as folder names, of each folder that has images."""
    folders: list[tuple[Path, tuple[str, ...]]] = [(root, ())]
    for _ in range(DEEPEST):
        folders = [(sub, (*up, sub.name)) for at, up in folders for sub in subfolders(at)]
        yield from (names for folder, names in folders if images_in(folder, ENDINGS))
