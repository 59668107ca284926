"""SVHN (Netzer et al. 2011): cropped digits of house numbers in street views, as MATLAB files.

Format: http://ufldl.stanford.edu/housenumbers. X [32, 32, 3, N] uint8; y [N, 1], 10 for a 0.
"""

from pathlib import Path

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset, of_one_domain
from fedjax_lab.data.formats import matlab
from fedjax_lab.data.places import fetched, locate
from fedjax_lab.errors import BadInput

FILES = ("train_32x32.mat", "test_32x32.mat")
HELP = fetched(
    "svhn",
    f"fetch {' and '.join(FILES)} from http://ufldl.stanford.edu/housenumbers and name their folder"
    " with --config.data.folder (or move them to ~/.cache/fedjax_lab/svhn)",
)


def svhn(*, folder: str = "") -> Dataset:
    """SVHN: 73,257 training and 26,032 test images [32, 32, 3]; the "extra" images are not used.

    folder: the folder of the two files, or one with a folder svhn that has them; empty:
        ~/.cache/fedjax_lab and data/ are searched.

    Raises BadInput if a file is missing, damaged or does not hold what its name says.
    """
    where = locate(folder, (FILES[0], f"svhn/{FILES[0]}"), HELP).parent
    train, test = (read(where / name) for name in FILES)
    return of_one_domain(train, test, tuple("0123456789"), "svhn")


def read(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images [N, 32, 32, 3] uint8 and digits [N] int32 in one file."""
    if not file.is_file():
        raise BadInput(f"{file} is missing: {HELP}")
    with safe.reading(file, HELP, "is damaged or not a MATLAB file"):
        content = matlab.load(file, ("X", "y"))
    x, y = (np.asarray(content.get(key)) for key in ("X", "y"))
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
        raise BadInput(f"{file}: X is {x.dtype} {list(x.shape)}, not uint8 [32, 32, 3, N]: {HELP}")
    if y.shape != (x.shape[3], 1) or y.dtype.kind not in "uif":
        raise BadInput(f"{file}: y is {y.dtype} {list(y.shape)}, not {x.shape[3]} labels: {HELP}")
    bad = ~np.isin(y, np.arange(1, 11))
    if bad.any():
        raise BadInput(f"{file}: label {y[bad][0]} is not in 1 .. 10: {HELP}")
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), y[:, 0].astype(np.int32) % 10
