"""SVHN (Netzer et al. 2011): cropped digits of house numbers in street views, as MATLAB files.

Format: http://ufldl.stanford.edu/housenumbers. X [32, 32, 3, N] uint8; y [N, 1], 10 for a 0.
"""

from functools import partial
from pathlib import Path

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset, single_domain
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats import matlab
from fedjax_lab.data.formats.image_arrays import images_of, labels_of
from fedjax_lab.data.places import fetched, locate

FILES = ("train_32x32.mat", "test_32x32.mat")
find = partial(locate, names=(FILES[0], f"svhn/{FILES[0]}"))
HELP = fetched(
    "svhn",
    f"fetch {' and '.join(FILES)} from http://ufldl.stanford.edu/housenumbers and name their folder"
    " with --config.data.folder (or move them to ~/.cache/fedjax_lab/svhn)",
)


@source(HELP)
def svhn(*, folder: str = "") -> Dataset:
    """SVHN: 73,257 training and 26,032 test images [32, 32, 3]; the "extra" images are not used.

    folder: the folder of the two files, or one with a folder svhn that has them; empty:
        ~/.cache/fedjax_lab and data/ are searched.
    """
    where = find(folder).parent
    train, test = (read(where / name) for name in FILES)
    return single_domain(train, test, tuple("0123456789"), "svhn")


def read(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images [N, 32, 32, 3] uint8 and digits [N] int32 in one file."""
    with safe.reading(file, problem="is damaged or not a MATLAB file"):
        content = matlab.load(file, ("X", "y"))
    x, y = (np.asarray(content.get(key)) for key in ("X", "y"))
    x = images_of(file, x.transpose(3, 0, 1, 2) if x.ndim == 4 else x, (32, 32, 3))
    return x, labels_of(file, y, len(x), range(1, 11)) % 10
