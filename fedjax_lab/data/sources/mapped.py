"""Arrays of your own, one .npy file each; the examples are memory-mapped and read on demand."""

import json
from pathlib import Path

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import TYPES, Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.places import folder_of, path_of
from fedjax_lab.data.sources import arrays
from fedjax_lab.errors import BadInput, nearest, quoted

NAMES, CLASSES = ("x", "y", "domain", "test", "client", "group"), "classes.json"
REMEDY = "write the arrays with numpy.save"
HELP = "name a folder with x.npy with --config.data.path"


@source(REMEDY)
def mapped(*, path: str) -> Dataset:
    """The examples of a folder with x.npy and y.npy; x stays on disk until it is used.

    path: the folder.

    `x` holds images [R, H, W] or [R, H, W, channels], or vectors [R, D], as uint8, int8, int16,
    int32, float32 or float16; `data/normalize.py` says what the numbers mean. `y` holds the labels
    [R, ...]: integers from 0 for classes, or what config.task needs. Optional files: `domain` [R],
    integers or names; `client` [R], the natural user of each example, integers or names; `group`
    [R], as in `arrays`; `test` [R], True or 1 for test examples; and classes.json, a list of class
    names. Without `test`, a random fifth of the examples is the test set, as `held_out` draws it,
    unless config.data.test draws another.
    """
    with safe.remedied(HELP):
        folder = folder_of(path_of(path, HELP))
    check_names(folder)
    members = {name: opened(folder / f"{name}.npy") for name in NAMES if has(folder, name)}
    x = examples(folder / "x.npy", members.pop("x"))
    others = {name: np.array(array) for name, array in members.items()}
    if (classes := folder / CLASSES).exists():
        others["classes"] = names_in(classes)
    return arrays.dataset_of(folder, x, others, "test", flags)


def has(folder: Path, name: str) -> bool:
    """Whether the folder has the array of this name."""
    return (folder / f"{name}.npy").exists()


def check_names(folder: Path) -> None:
    """Raises BadInput unless the folder has x.npy and y.npy, and only .npy files of NAMES."""
    for name in NAMES[:2]:
        if not has(folder, name):
            raise safe.Fault(f"{folder} has no {name}.npy")
    names = [f"{name}.npy" for name in NAMES]
    for file in safe.glob(folder, "*.npy"):
        if file.name not in names:
            near = nearest(file.name, names)
            raise BadInput(f"{folder} has an unknown file {quoted(file.name)}; {near}")


def examples(file: Path, x: np.ndarray) -> np.ndarray:
    """The memory-mapped examples of a file; images [R, H, W] get a channel axis."""
    if x.dtype not in map(np.dtype, TYPES):
        remedy = (
            "save x.astype(numpy.float32), after subtracting large means of its columns, or"
            " numpy.uint8 for pixels from 0 to 255"
        )
        raise BadInput(f"{file} has type {x.dtype}, not one of {', '.join(TYPES)}: {remedy}")
    if x.ndim < 2:
        raise BadInput(f"{file} has shape {list(x.shape)}, not [R, D] or [R, H, W, channels]")
    if not x.flags.c_contiguous:
        raise BadInput(f"{file} is in Fortran order: save numpy.ascontiguousarray(x) instead")
    return x[..., None] if x.ndim == 3 else x


def flags(folder: Path, test: np.ndarray) -> np.ndarray:
    """The test flags [R] bool of the entries of test.npy."""
    if test.dtype.kind not in "bui" or not np.isin(test, (0, 1)).all():
        file = folder / "test.npy"
        raise BadInput(f"{file}: its entries must be False or True, or 0 or 1")
    return test.astype(bool)


def opened(file: Path) -> np.ndarray:
    """The memory-mapped array of a file. Raises BadInput if that is not possible."""
    with safe.reading(file):
        safe.check_regular(file)
        return np.load(file, mmap_mode="r", allow_pickle=False)


def names_in(file: Path) -> np.ndarray:
    """The list of names in a JSON file."""
    with safe.reading(file, "write it with json.dump"):
        names = json.loads(safe.content(file))
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("it is not a list of names")
    return np.array(names, object)
