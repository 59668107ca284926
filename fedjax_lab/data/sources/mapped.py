"""Arrays of your own, one .npy file each; the examples are memory-mapped and read on demand."""

import json
from pathlib import Path

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import TYPES, Dataset
from fedjax_lab.data.sources import arrays
from fedjax_lab.errors import BadInput, nearest, quoted

NAMES = ("x.npy", "y.npy", "domain.npy", "test.npy", "client.npy", "classes.json")
REMEDY = "write the arrays with numpy.save"


def mapped(*, path: str) -> Dataset:
    """The examples of a folder with x.npy and y.npy; x stays on disk until it is used.

    path: the folder.

    `x` holds images [R, H, W] or [R, H, W, channels], or vectors [R, D], as uint8, int8, int16,
    int32, float32 or float16; `data/normalize.py` says what the numbers mean. `y` [R] holds integer
    labels from 0. Optional files: `domain` [R], integers or names; `client` [R], the natural user
    of each example, integers or names; `test` [R], True or 1 for test examples; and classes.json, a
    list of class names. Without `test`, a random fifth of the examples is the test set: the same
    one at every call, unless config.data.test draws another.

    Raises BadInput if the folder or a file is not of this form.
    """
    if not path:
        raise BadInput("data.path is empty: name a folder with x.npy with --config.data.path")
    folder = Path(path).expanduser()
    check_names(folder)
    x = examples(folder / "x.npy")
    y, domain, test, client = (of_each(folder / name, len(x)) for name in NAMES[1:5])
    assert y is not None  # `check_names` requires it
    classes = arrays.class_names(folder, names_in(folder / "classes.json"), y)
    y = arrays.labels(folder / "y.npy", y, classes)
    domain = np.zeros(len(x), np.int32) if domain is None else domain
    domain, domains = arrays.numbered(folder / "domain.npy", "domain", domain)
    is_test = arrays.random_test_rows(len(x)) if test is None else flags(folder / "test.npy", test)
    arrays.check_both_splits(folder, is_test)
    made = Dataset(x=x, y=y, domain=domain, test=is_test, classes=classes, domains=domains)
    made = made._replace(test_is_drawn=test is None)
    return arrays.with_users(folder / "client.npy", made, client)


def check_names(folder: Path) -> None:
    """Raises BadInput unless the folder has x.npy and y.npy, and only .npy files of NAMES."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder: name one with x.npy with --config.data.path")
    for name in NAMES[:2]:
        if not (folder / name).exists():
            raise BadInput(f"{folder} has no {name}: {REMEDY}")
    for file in safe.glob(folder, "*.npy"):
        if file.name not in NAMES:
            raise BadInput(
                f"{folder} has an unknown file {quoted(file.name)}; {nearest(file.name, NAMES)}"
            )


def examples(file: Path) -> np.ndarray:
    """The memory-mapped examples of a file; images [R, H, W] get a channel axis."""
    x = opened(file)
    if x.dtype not in map(np.dtype, TYPES):
        remedy = "save x.astype(numpy.float32), or numpy.uint8 for pixels from 0 to 255"
        raise BadInput(f"{file} has type {x.dtype}, not one of {', '.join(TYPES)}: {remedy}")
    if x.ndim < 2:
        raise BadInput(f"{file} has shape {list(x.shape)}, not [R, D] or [R, H, W, channels]")
    if not x.flags.c_contiguous:
        raise BadInput(f"{file} is in Fortran order: save numpy.ascontiguousarray(x) instead")
    return x[..., None] if x.ndim == 3 else x


def of_each(file: Path, count: int) -> np.ndarray | None:
    """The array of a file with one entry for each of `count` examples; None if there is no file."""
    if not file.exists():
        return None
    array = np.array(opened(file))
    if array.shape != (count,):
        raise BadInput(f"{file} has shape {list(array.shape)}, but x.npy has {count} examples")
    return array


def flags(file: Path, test: np.ndarray) -> np.ndarray:
    """The test flags [R] bool of the entries of a file."""
    if test.dtype.kind not in "bui" or not np.isin(test, (0, 1)).all():
        raise BadInput(f"{file}: its entries must be False or True, or 0 or 1")
    return test.astype(bool)


def opened(file: Path) -> np.ndarray:
    """The memory-mapped array of a file. Raises BadInput if that is not possible."""
    with safe.reading(file, REMEDY):
        safe.check_regular(file)
        return np.load(file, mmap_mode="r", allow_pickle=False)


def names_in(file: Path) -> np.ndarray | None:
    """The list of names in a JSON file; None if there is no file."""
    if not file.exists():
        return None
    with safe.reading(file, "write it with json.dump"):
        names = json.loads(safe.content(file))
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("it is not a list of names")
    return np.array(names, object)
