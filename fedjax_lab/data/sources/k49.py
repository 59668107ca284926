"""Kuzushiji-49 (Clanuwat et al. 2018, arXiv:1812.01718): 48 hiragana and the iteration mark.

Files: http://codh.rois.ac.jp/kmnist. Each of the four .npz files has one array `arr_0`.
"""

from functools import partial
from pathlib import Path

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset, single_domain
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats import npz
from fedjax_lab.data.formats.image_arrays import images_of, labels_of
from fedjax_lab.data.places import fetched, locate

FILES = ("k49-train-imgs.npz", "k49-train-labels.npz", "k49-test-imgs.npz", "k49-test-labels.npz")
find = partial(locate, names=(FILES[0], f"k49/{FILES[0]}"))
CLASSES = tuple(
    "a i u e o ka ki ku ke ko sa shi su se so ta chi tsu te to na ni nu ne no ha hi fu he ho ma mi"
    " mu me mo ya yu yo ra ri ru re ro wa wi we wo n iteration".split()
)


@source(fetched("k49", "name the folder of the four files with --config.data.folder"))
def k49(*, folder: str = "") -> Dataset:
    """Kuzushiji-49: 232,365 training and 38,547 test images [28, 28, 1] of 49 unequal classes.

    folder: the folder of the four files, or one with a folder k49 that has them; empty:
        ~/.cache/fedjax_lab and data/ are searched.
    """
    where = find(folder).parent
    train, test = (_examples(where / FILES[i], where / FILES[i + 1]) for i in (0, 2))
    return single_domain(train, test, CLASSES, "k49")


def _examples(images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 28, 28, 1] and labels [N] of a pair of files."""
    x = images_of(images, _array(images), (28, 28, 1))
    return x, labels_of(labels, _array(labels), len(x), range(len(CLASSES)))


def _array(file: Path) -> np.ndarray:
    with safe.reading(file, problem="is damaged or not a file of Kuzushiji-49"):
        return npz.read(file, ["arr_0"])["arr_0"]
