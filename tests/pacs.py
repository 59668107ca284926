"""A small data set in the layout of PACS."""

import numpy as np
from PIL import Image

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")


CLASSES = ("dog", "elephant", "horse")


SIZES = (3, 4, 3, 5)  # images of each class, by domain


def picture(rng, mode="RGB", size=(40, 30)):
    """Smooth noise; `size` is (width, height)."""
    lumps = Image.fromarray(rng.integers(0, 256, (6, 6, 3)).astype(np.uint8))
    image = lumps.resize(size, Image.Resampling.BICUBIC).convert(mode)
    if mode == "RGBA":
        image.putalpha(0)
    return image


def make_folders(root, domains=DOMAINS, classes=CLASSES, sizes=SIZES):
    """Writes root/DOMAIN/CLASS/IMAGE, with a different type of image file for each domain."""
    rng = np.random.default_rng(0)
    kinds = [("RGB", ".jpg"), ("RGB", ".JPEG"), ("RGB", ".JPG"), ("L", ".png")]
    for domain, (mode, ending), count in zip(domains, kinds, sizes, strict=False):
        for name in classes:
            folder = root / domain / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture(rng, mode).save(folder / f"pic_{number:03}{ending}")
    return root
