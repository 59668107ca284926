"""CINIC-10 (Darlow et al. 2018, arXiv:1810.03505): CIFAR-10's classes with images of ImageNet.

Files: https://datashare.ed.ac.uk/handle/10283/3192. train/, valid/ and test/, each with ten folders
of 9,000 images of 32 x 32 pixels.
"""

from pathlib import Path

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.images import Split, arrays, check_size, decoded, rgb
from fedjax_lab.data.places import fetched, locate
from fedjax_lab.errors import BadInput

VERSION = 1  # of the pixels: to be raised with every change that alters one
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
HELP = fetched(
    "cinic10",
    "name the folder with train/, valid/ and test/ by --config.data.folder (or put it in"
    " ~/.cache/fedjax_lab/cinic10)",
)
PROBES = tuple(
    f"{folder}train/{CLASSES[0]}" for folder in ("", "cinic10/", "CINIC-10/", "cinic10/CINIC-10/")
)


@decoded
def cinic10(*, folder: str = "", size: int = 32, merge_valid: bool = False) -> Dataset:
    """CINIC-10: 90,000 + 90,000 images [size, size, 3] of CIFAR-10's ten classes.

    The 90,000 validation images are left out, or with `merge_valid` they come after the training
    images, as training images. `folder` holds train/, valid/ and test/ or is the one around its
    cinic10 (or CINIC-10); without it the usual places are searched. The pixels are kept in
    $FEDJAX_LAB_CACHE, else in ~/.cache/fedjax_lab, until names or sizes of files change. Raises
    BadInput for what is missing or damaged.
    """
    check_size(size)
    where = locate(folder, PROBES, HELP, Path.is_dir).parents[1]
    splits = ("train", "valid") if merge_valid else ("train",)
    parts, test = [_files(where / split) for split in splits], _files(where / "test")
    train = Split(*(sum(lists, []) for lists in zip(*parts, strict=True)))
    made = arrays(f"cinic10-v{VERSION}", [train], [test], size, rgb, HELP)
    return Dataset(**made, classes=CLASSES, domains=("cinic10",))


def _files(folder: Path) -> Split:
    """The files of one split, class after class, by name."""
    files, labels = [], []
    for label, name in enumerate(CLASSES):
        images = sorted((folder / name).glob("*.png"))
        if not images:
            raise BadInput(f"{folder / name} has no images *.png: {HELP}")
        files += images
        labels += [label] * len(images)
    return Split(files, labels)
