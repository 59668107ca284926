"""A user's own arrays: one .npz file with x and y, and if wanted domain, split and classes."""

from pathlib import Path

import numpy as np

from fedjax_lab.data import npz, safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput, cut, nearest, quoted

KEYS = ("x", "y", "domain", "client", "split", "classes")
REMEDY = "write it with numpy.savez"
MOST_CLASSES = 100_000  # a label beyond is taken for a mistake unless `classes` says otherwise


def arrays(*, path: str) -> Dataset:
    """Examples of an .npz file; everything wrong with it raises BadInput.

    `x` holds images [R, H, W] or [R, H, W, channels], or vectors [R, D]: uint8 0..255, or any other
    numbers, which become float32. `y` [R] holds integers from 0. Optional: `domain` [R], integers
    or names; `client` [R], the natural user of each example, integers or names; `split` [R],
    "train" or "test", or 1 for test (without it a fifth drawn at random is the test set, the same
    at every call); `classes`, their names. Nothing else may be in the file.
    """
    if not path:
        raise BadInput("data.path is empty: name an .npz file with --config.data.path")
    file = Path(path).expanduser()
    members = read(file)
    x = pixels(file, members["x"])
    for key in ("y", "domain", "client", "split"):
        if key in members and members[key].shape != (len(x),):
            shape = list(members[key].shape)
            raise BadInput(f"{file}: {key} has shape {shape}, but x has {len(x)} examples")
    classes = class_names(file, members.get("classes"), members["y"])
    y = labels(file, members["y"], classes)
    domain, domains = numbered(file, "domain", members.get("domain", np.zeros(len(x), np.int32)))
    test = is_test(file, members["split"]) if "split" in members else random_test_rows(len(x))
    check_both_splits(file, test)
    made = Dataset(x=x, y=y, domain=domain, test=test, classes=classes, domains=domains)
    return with_users(file, made, members.get("client"))


def read(file: Path) -> dict[str, np.ndarray]:
    """The arrays of the file, x and y among them; BadInput for one that nothing reads."""
    if not file.is_file():
        raise BadInput(f"{file} is not a file: name an .npz file with --config.data.path")
    with safe.reading(file, REMEDY, "is not an .npz file, or is damaged"):
        names = npz.names(file)
    missing = [key for key in ("x", "y") if key not in names]
    if missing:
        there = cut(", ".join(names) or "nothing", 200)
        raise BadInput(f"{file} has no array {missing[0]!r}, it holds: {there}")
    for name in names:
        if name not in KEYS:
            unused = f"{file} has an array {quoted(name)}, which nothing reads"
            remedy = f"{nearest(name, KEYS)} Remove all but {', '.join(KEYS)}"
            raise BadInput(f"{unused}; {remedy}")
    arrays = npz.read(file, [key for key in KEYS if key in names], REMEDY, "is damaged")
    return {key: _decoded(array) for key, array in arrays.items()}


def _decoded(array: np.ndarray) -> np.ndarray:
    """The same array; bytes become strings."""
    return np.char.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array


def pixels(file: Path, x: np.ndarray) -> np.ndarray:
    """Examples as uint8 or finite float32; images [R, H, W] get a channel axis."""
    if x.dtype.kind not in "buif":
        raise BadInput(f"{file}: x must be numbers, its type is {x.dtype}")
    if x.ndim < 2 or 0 in x.shape:
        raise BadInput(f"{file}: x has shape {list(x.shape)}: [R, D] or [R, H, W, channels]")
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        bad = ~np.isfinite(x).reshape(len(x), -1).all(1)
        if bad.any():
            raise BadInput(f"{file}: x has NaN or infinite values, first in row {bad.argmax()}")
    return x[..., None] if x.ndim == 3 else x


def class_names(file: Path, classes: np.ndarray | None, y: np.ndarray) -> tuple[str, ...]:
    """The names in the file, or else "0", "1", ... to the highest label."""
    if classes is not None:
        if classes.ndim != 1 or len(classes) == 0:
            raise BadInput(f"{file}: classes has shape {list(classes.shape)}: a list of names")
        return tuple(map(str, classes.tolist()))
    top = int(y.max()) if y.dtype.kind in "ui" else 0
    return tuple(map(str, range(min(max(top, 0) + 1, MOST_CLASSES))))


def labels(file: Path, y: np.ndarray, classes: tuple[str, ...]) -> np.ndarray:
    """Labels [R] int32, each of them a class."""
    if y.dtype.kind not in "ui":
        raise BadInput(f"{file}: y must be integers, its type is {y.dtype}")
    bad = (y < 0) | (y >= len(classes))
    if bad.any():
        row = bad.argmax()
        raise BadInput(f"{file}: y is {y[row]} in row {row}, not in 0 .. {len(classes) - 1}")
    return y.astype(np.int32)


def numbered(file: Path, what: str, values: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Each example's domain (or what else) [R] int32, and the names, in order of names or numbers.

    BadInput unless the values are integers or names.
    """
    if values.dtype.kind not in "uiU":
        raise BadInput(f"{file}: {what} must be integers or strings, its type is {values.dtype}")
    names, index = np.unique(values, return_inverse=True)
    return index.astype(np.int32), tuple(map(str, names.tolist()))


def with_users(file: Path, dataset: Dataset, client: np.ndarray | None) -> Dataset:
    """The dataset with the natural user of each example [R]; None: there are none."""
    if client is None:
        return dataset
    client, users = numbered(file, "client", client)
    return dataset._replace(client=client, users=users)


def is_test(file: Path, split: np.ndarray) -> np.ndarray:
    """Which examples [R] bool are for tests."""
    train, test = ("train", "test") if split.dtype.kind == "U" else (0, 1)
    bad = (split != train) & (split != test)
    if bad.any():
        row = bad.argmax()
        raise BadInput(f"{file}: split is {split[row]} in row {row}, not {train} or {test}")
    return split == test


def check_both_splits(file: Path, test: np.ndarray) -> None:
    """BadInput unless there are examples for tests [R] bool, and others."""
    for name, count in (("training", np.sum(~test)), ("test", np.sum(test))):
        if count == 0:
            raise BadInput(f"{file}: there are no {name} examples among its {len(test)}")


def random_test_rows(count: int) -> np.ndarray:
    """A fifth of the examples [count] bool: the last of a permutation that is always the same."""
    order = np.random.default_rng(0).permutation(count)
    test = np.zeros(count, bool)
    test[order[count - count // 5 :]] = True
    return test
