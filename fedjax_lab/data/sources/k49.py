"""Kuzushiji-49 (Clanuwat et al. 2018, arXiv:1812.01718): 48 hiragana and the iteration mark.

Files: http://codh.rois.ac.jp/kmnist. Each of the four .npz files has one array `arr_0`.
"""

from pathlib import Path

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset, of_one_domain
from fedjax_lab.data.formats import npz
from fedjax_lab.data.places import fetched, locate
from fedjax_lab.errors import BadInput

FILES = ("k49-train-imgs.npz", "k49-train-labels.npz", "k49-test-imgs.npz", "k49-test-labels.npz")
CLASSES = tuple(
    "a i u e o ka ki ku ke ko sa shi su se so ta chi tsu te to na ni nu ne no ha hi fu he ho ma mi"
    " mu me mo ya yu yo ra ri ru re ro wa wi we wo n iteration".split()
)
HELP = fetched("k49", "name the folder of the four files with --config.data.folder")


def k49(*, folder: str = "") -> Dataset:
    """Kuzushiji-49: 232,365 training and 38,547 test images [28, 28, 1] of 49 unequal classes.

    folder: the folder of the four files, or one with a folder k49 that has them; empty:
        ~/.cache/fedjax_lab and data/ are searched.

    Raises BadInput if a file is missing, damaged or does not hold what its name says.
    """
    where = locate(folder, (FILES[0], f"k49/{FILES[0]}"), HELP).parent
    train, test = (_examples(where / FILES[i], where / FILES[i + 1]) for i in (0, 2))
    return of_one_domain(train, test, CLASSES, "k49")


def _examples(images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 28, 28, 1] and labels [N] of a pair of files."""
    x, y = (_array(file) for file in (images, labels))
    if x.dtype != np.uint8 or x.ndim != 3 or x.shape[1:] != (28, 28) or len(x) == 0:
        raise BadInput(f"{images} has {x.dtype} {list(x.shape)}, not uint8 [N, 28, 28]: {HELP}")
    if y.dtype.kind not in "ui" or y.shape != x.shape[:1]:
        raise BadInput(f"{labels} has {y.dtype} {list(y.shape)}, not {len(x)} labels: {HELP}")
    if y.min() < 0 or y.max() >= len(CLASSES):
        span = f"{y.min()} to {y.max()}, not 0 to {len(CLASSES) - 1}"
        raise BadInput(f"{labels}: the labels are from {span}: {HELP}")
    return x[..., None], y.astype(np.int32)


def _array(file: Path) -> np.ndarray:
    if not file.is_file():
        raise BadInput(f"{file} is missing: {HELP}")
    with safe.reading(file, HELP, "is damaged or not a file of Kuzushiji-49"):
        return npz.read(file, ["arr_0"], HELP)["arr_0"]
