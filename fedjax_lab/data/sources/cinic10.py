"""CINIC-10 (Darlow et al. 2018, arXiv:1810.03505): CIFAR-10 extended by images of ImageNet.

Files: https://datashare.ed.ac.uk/handle/10283/3192. The folders train/, valid/ and test/ each have
ten folders, one for each class, of 9,000 images of 32 x 32 pixels.
"""

from functools import partial
from pathlib import Path

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import Side
from fedjax_lab.data.formats.images import Look, class_images, image_dataset, image_source
from fedjax_lab.data.places import fetched, locate

VERSION = 1  # of the pixels; increment it with every change that alters a pixel
CLASSES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
HELP = fetched(
    "cinic10",
    "name the folder with train/, valid/ and test/ with --config.data.folder (or move it to"
    " ~/.cache/fedjax_lab/cinic10)",
)
FOLDERS = ("", "cinic10/", "CINIC-10/", "cinic10/CINIC-10/")
find = partial(locate, names=[f"{at}train/{CLASSES[0]}" for at in FOLDERS], kind=Path.is_dir)


@image_source(HELP)
def cinic10(*, folder: str = "", size: Side = 32, merge_valid: bool = False) -> Dataset:
    """CINIC-10: 90,000 training and 90,000 test images [size, size, 3] of CIFAR-10's ten classes.

    folder: the folder with train/, valid/ and test/, or with a folder cinic10 or CINIC-10 that has
        them; empty: ~/.cache/fedjax_lab and data/ are searched.
    size: the side of an image in pixels.
    merge_valid: append the 90,000 validation images to the training images; otherwise they are left
        out.

    Decoded images are cached in $FEDJAX_LAB_CACHE, else in ~/.cache/fedjax_lab, until a file
    changes.
    """
    where = find(folder).parents[1]
    splits = ("train", "valid", "test") if merge_valid else ("train", "test")
    folders = [[where / split / name for name in CLASSES] for split in splits]
    *parts, test = [class_images(part, [".png"]) for part in folders]
    title, domains = f"cinic10-v{VERSION}", ("cinic10",)
    return image_dataset(title, [sum(parts, [])], [test], Look(size), CLASSES, domains)
