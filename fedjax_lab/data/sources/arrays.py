"""Arrays of your own in one .npz file: x and y, and optionally those of KEYS."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.data import held_out, leaks, precision, safe
from fedjax_lab.data.dataset import Dataset, numerals
from fedjax_lab.data.formats import npz
from fedjax_lab.data.places import path_of
from fedjax_lab.errors import BadInput, cut, nearest, quoted

KEYS = ("x", "y", "domain", "client", "group", "split", "classes")
GROUPINGS = ("domain", "client", "group")
REMEDY = "write it with numpy.savez"
LOWEST, HIGHEST = -(2**31), 2**31 - 1  # of whole labels


def arrays(*, path: str) -> Dataset:
    """Reads examples from an .npz file.

    path: the .npz file.

    `x` holds images [R, H, W] or [R, H, W, channels], or rows of numbers [R, D], of any type;
    `data/normalize.py` says what the numbers mean. `y` holds the labels [R, ...]: integers from 0
    for classes, or what config.task needs. Optional arrays: `domain` [R], integers or names;
    `client` [R], the natural user of each example, integers or names; `group` [R], integers or
    names of which none has both training and test examples, such as patients; `split` [R], "train"
    or "test", or 0 and 1; and `classes`, the names of the classes. The file must not hold any other
    array. Without `split`, a random fifth of the examples is the test set, as `held_out` draws it,
    unless config.data.test draws another.
    """
    file = path_of(path, "name an .npz file with --config.data.path")
    members = read(file)
    return from_members(file, members.pop("x"), members)


def from_members(where: Path | str, x: np.ndarray, members: dict[str, np.ndarray]) -> Dataset:
    """The dataset of these arrays, by the names in KEYS. where: the culprit in messages."""
    made = dataset_of(where, pixels(where, x), members, "split", is_test)
    if not made.test_is_drawn:
        leaks.report(made)
    return made


def dataset_of(
    where: Path | str,
    x: np.ndarray,
    members: dict[str, np.ndarray],
    split: str,
    is_test: Callable[[Any, np.ndarray], np.ndarray],
    draw: Callable[[Dataset], Dataset] = held_out.with_share,
) -> Dataset:
    """The dataset of examples x [R, ...] and of the other arrays, by name.

    split: the name of the array that says which examples are test examples.
    is_test: (where, that array) -> test flags [R] bool.
    draw: draws the test examples if there is no such array.
    """
    for key in ("y", "domain", "client", "group", split):
        shape = members[key].shape if key in members else (len(x),)
        if shape[:1] != (len(x),) or (key != "y" and len(shape) > 1):
            raise BadInput(f"{where}: {key} has shape {list(shape)}, but x has {len(x)} examples")
    y = members["y"]
    if y.dtype.kind not in "uifb":
        raise BadInput(f"{where}: y must hold numbers, but its type is {y.dtype}")
    if y.dtype.kind == "b" or np.isin(y, (0, 1)).all():  # losses of PyTorch need 0.0 and 1.0
        y = y.astype(np.int32)
    classes = class_names(where, members.get("classes"), y)
    numbers = {key: numbered(where, key, members[key]) for key in GROUPINGS if key in members}
    domain, domains = numbers.get("domain", (np.zeros(len(x), np.int32), ("0",)))
    client, users = numbers.get("client", (None, ()))
    made = Dataset(
        x=x,
        y=labels(where, y, classes),
        domain=domain,
        test=is_test(where, members[split]) if split in members else np.zeros(len(x), bool),
        classes=classes,
        domains=domains,
        client=client,
        users=users,
        origin=numbers["group"][0] if "group" in numbers else None,
    )
    made = made if split in members else draw(made)
    _check_split(where, made.test)
    ids = leaks.ids_that_predict(x, made.y) if x.ndim == 2 else []
    names = [f"column {column} of x" for column in ids]
    return made._replace(remarks=(leaks.remark_on_ids(names),)) if ids else made


def _check_split(where, test):
    """Raises BadInput unless there are training and test examples."""
    for name, count in (("training", np.sum(~test)), ("test", np.sum(test))):
        if count == 0:
            raise BadInput(
                f"{where}: there are no {name} examples among its {len(test)}; give a split with"
                " some, or more examples of a class than one, which is for training"
            )


def read(file: Path) -> dict[str, np.ndarray]:
    """The arrays of the file, by name.

    Raises BadInput if x or y is missing, or if the file has an array that is not in KEYS.
    """
    if not file.is_file():
        raise BadInput(f"{file} is not a file: name an .npz file with --config.data.path")
    with safe.reading(file, REMEDY, "is not an .npz file, or is damaged"):
        names = npz.names(file)
    missing = [key for key in ("x", "y") if key not in names]
    if missing:
        present = cut(", ".join(names) or "nothing", 200)
        raise BadInput(f"{file} has no array {missing[0]!r}; it holds: {present}")
    for name in names:
        if name not in KEYS:
            raise BadInput(f"{file} has an unknown array {quoted(name)}; {nearest(name, KEYS)}")
    arrays = npz.read(file, [key for key in KEYS if key in names], REMEDY, "is damaged")
    texts = {key: array for key, array in arrays.items() if array.dtype.kind == "S"}
    return arrays | {key: np.char.decode(a, "utf-8", "replace") for key, a in texts.items()}


def pixels(file: Path | str, x: np.ndarray) -> np.ndarray:
    """Examples as images of their type or as rows; images [R, H, W] get a channel axis.

    Numbers that are not of one byte become finite float32, except for the integers of images, and
    for numbers that only float64 can tell apart.
    """
    if x.dtype.kind not in "buif":
        raise BadInput(f"{file}: x must hold numbers, but its type is {x.dtype}")
    if x.ndim < 2 or 0 in x.shape:
        raise BadInput(f"{file}: x has shape {list(x.shape)}, not [R, D] or [R, H, W, channels]")
    if x.dtype.kind == "f":
        narrow = finite(file, "x", x)
        x = x.astype(np.float64) if precision.merged(x) else narrow
    elif x.ndim == 2 and x.dtype.kind in "iu" and x.dtype != np.uint8:
        of_byte = x.dtype == np.int8  # columns, not token ids
        x = x.astype(np.float16) if of_byte else precision.exact(f"{file}: the numbers of x", x)
    return x[..., None] if x.ndim == 3 else x


def finite(file: Path | str, name: str, values: np.ndarray) -> np.ndarray:
    """The values [R, ...] as float32. Raises BadInput, with the row, unless they are finite."""
    with np.errstate(over="ignore"):
        values = values.astype(np.float32, copy=False)
    bad = ~np.isfinite(values).reshape(len(values), -1).all(1)
    if bad.any():
        raise BadInput(f"{file}: {name} has NaN or infinite values, first in row {bad.argmax()}")
    return values


def class_names(file: Path | str, classes: np.ndarray | None, y: np.ndarray) -> tuple[str, ...]:
    """The class names in the file, or else those of numbered classes; see `numerals`."""
    if classes is None:
        return numerals(y)
    if classes.ndim != 1 or len(classes) == 0:
        shape = f"{list(classes.shape)}, but must be a list of names"
        raise BadInput(f"{file}: classes has shape {shape}")
    return tuple(map(str, classes.tolist()))


def labels(file: Path | str, y: np.ndarray, classes: tuple[str, ...]) -> np.ndarray:
    """The labels [R, ...] as int32, or as float32 if they are not whole or do not fit.

    Raises BadInput if a label [R] has no name among given classes.
    """
    if y.dtype.kind == "f" or not LOWEST <= y.min() <= y.max() <= HIGHEST:
        precision.check_labels(f"{file}: y", y)
        return finite(file, "y", y)
    bad = (y < 0) | (y >= len(classes))
    if classes and y.ndim == 1 and bad.any():
        row = bad.argmax()
        raise BadInput(f"{file}: y is {y[row]} in row {row}, not in 0 .. {len(classes) - 1}")
    return y.astype(np.int32)


def numbered(file: Path | str, what: str, values: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers the values: the index [R] int32 of each one among the sorted distinct values.

    Returns the indices and the distinct values as strings. what: the name of the array, such as
    "domain", for messages. Raises BadInput unless the values are integers or strings.
    """
    if values.dtype.kind not in "uiU":
        raise BadInput(
            f"{file}: {what} must hold integers or strings, but its type is {values.dtype}"
        )
    if values.dtype.kind == "U":
        values = np.char.strip(values)
        if (empty := values == "").any():
            raise BadInput(f"{file}: {what} is empty in row {empty.argmax()}")
    names, index = np.unique(values, return_inverse=True)
    return index.astype(np.int32), tuple(map(str, names.tolist()))


def is_test(file: Path | str, split: np.ndarray) -> np.ndarray:
    """The test flags [R] bool of the entries of `split`."""
    train, test = ("train", "test") if split.dtype.kind == "U" else (0, 1)
    bad = (split != train) & (split != test)
    if bad.any():
        row = bad.argmax()
        raise BadInput(f"{file}: split is {split[row]} in row {row}, not {train} or {test}")
    return split == test
