"""Data from the memory of a Python program, instead of a source that a config names.

Each function returns a config's section `data`: `run({"data": from_arrays(x, y), ...})`. The
section is valid only in the process that made it: a folder of such a run can be reported, but not
resumed or loaded.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_lab.data import held_out, precision
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.sources import arrays, hub
from fedjax_lab.errors import BadInput, nearest, quoted

READ_TWICE = 16  # examples of a dataset of PyTorch; a flip changes one of two

Section = dict[str, Callable[[], Dataset]]


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    client: ArrayLike | None = None,
    domain: ArrayLike | None = None,
    group: ArrayLike | None = None,
    split: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
) -> Section:
    """The section `data` of a config for these arrays.

    Args:
      x: images [R, H, W] or [R, H, W, channels], or rows of numbers [R, D].
      y: the labels [R, ...]: integers from 0 for classes, or what config.task needs.
      client: the natural user of each example [R], integers or names, for partition by_client.
      domain: the domain of each example [R], integers or names.
      group: the group of each example [R], such as a patient, integers or names; no group is
        divided between training and test examples.
      split: "train" or "test", or 0 and 1, for each example [R]; None: a random fifth of the
        examples is the test set, unless config.data.test draws another.
      classes: the names of the classes.

    Raises:
      BadInput: the arrays do not belong together, or hold values that cannot be used.
    """
    if y is None:
        raise BadInput("from_arrays: y is None; give the label of each example")
    given = {"y": y, "client": client, "domain": domain, "group": group, "split": split}
    given["classes"] = classes
    members = {name: _array(name, each) for name, each in given.items() if each is not None}
    return _section(arrays.from_members("from_arrays", _array("x", x), members))


def from_torch(
    train: Any,
    test: Any = None,
    *,
    client: ArrayLike | None = None,
    domain: ArrayLike | None = None,
    group: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
) -> Section:
    """The section `data` of a config for map-style datasets of PyTorch, which are read at once.

    Images in tensors are channels first there, [channels, H, W], and channels last here. Random
    transforms of a dataset are drawn once, for the whole run, and a line of the run says so; use
    config.data.augment instead.

    Args:
      train: the training examples; each item is a pair of an example and its label, as tensors,
        arrays, numbers or images of PIL.
      test: the test examples; None: a random fifth of `train`.
      client: the user of each example, those of `train` first.
      domain: the domain of each example, those of `train` first.
      group: as in `from_arrays`, those of `train` first.
      classes: the names of the classes; None: `train.classes` if there is one.

    Raises:
      BadInput: the items are not such pairs of equal shapes.
    """
    each = {name: part for name, part in (("train", train), ("test", test)) if part is not None}
    read = {name: [*_pairs(part)] for name, part in each.items()}
    pairs = [pair for of_part in read.values() for pair in of_part]
    x, y = _stacked([_channels_last(x) for x, _ in pairs]), _stacked([y for _, y in pairs])
    split = None if test is None else (np.arange(len(x)) >= len(train)).astype(int)
    classes = getattr(train, "classes", None) if classes is None else classes
    section = from_arrays(
        x, y, client=client, domain=domain, group=group, split=split, classes=classes
    )
    remarks = tuple(
        f"from_torch: a transform of {name} is random; it was drawn once for the whole run"
        " (config.data.augment draws anew in each step)"
        for name in each
        if _is_random(each[name], read[name])
    )
    return _section(section["name"]()._replace(remarks=remarks)) if remarks else section


def _is_random(dataset, pairs):
    """Whether some of the first examples differ if they are read again."""
    again = [np.asarray(dataset[i][0]) for i in range(min(len(pairs), READ_TWICE))]
    return not all(map(np.array_equal, again, (x for x, _ in pairs)))


def from_hub(dataset: Any, **settings: Any) -> Section:
    """The section `data` of a config for data of Hugging Face's package `datasets`.

    Args:
      dataset: a Dataset, or a DatasetDict with the split `train` and possibly `test`; without
        it, a random fifth of the examples is the test set.
      settings: as in the data source `huggingface`: the columns `image` or `text`, `label`,
        `client`, `domain` and `group`; `size` and `color` of images; `tokenizer` and `length` of
        texts.

    Raises:
      BadInput: the columns are missing, ambiguous or of other types, or there is no such setting.
    """
    splits = dataset.values() if isinstance(dataset, Mapping) else [dataset]
    if not all(hasattr(each, "features") and hasattr(each, "__len__") for each in splits):
        raise BadInput(
            "from_hub needs a Dataset or DatasetDict of the package datasets, which has a length,"
            f" not {quoted(type(dataset).__name__)}"
        )
    valid = inspect.signature(hub.huggingface).parameters.keys() - {"dataset", "subset"}
    for key in settings:
        if key not in valid:
            raise BadInput(f"from_hub has no setting {quoted(key)}; {nearest(key, valid)}")
    made = hub.huggingface(dataset=dataset, **settings)
    if not made.test.any():
        made = held_out.with_share(made)
        if not made.test.any():
            raise BadInput(
                f"from_hub: {len(made.y)} examples are too few to draw a test set; give a"
                " DatasetDict with the splits train and test"
            )
    return _section(made)


def _section(dataset):
    """The section `data` of a config whose source returns this dataset."""

    def source():
        return dataset

    source.__qualname__ = "<arrays>"  # the name in config.json
    return {"name": source}


def _array(name, values):
    """The values as an array. Columns of text in pandas are arrays of objects."""
    precision.check_unmasked(f"from_arrays: {name}", values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise BadInput(f"from_arrays: {name} has rows of unequal shapes; pad them") from error
    if array.dtype.kind not in "OU":
        return array
    array = np.asarray(values, object)  # a list of names with a NaN, which NumPy would name "nan"
    return array.astype(str) if all(isinstance(each, str) for each in array.flat) else array


def _pairs(dataset):
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise BadInput(
            f"from_torch needs a map-style dataset with a length, not {quoted(dataset, 80)}"
        )
    for i in range(len(dataset)):
        item = dataset[i]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise BadInput(
                f"from_torch: item {i} must be a pair of an example and its label, not"
                f" {quoted(item, 80)}"
            )
        yield item


def _channels_last(x):
    """An example as an array; an image in a tensor, which has a method `numpy`, is transposed."""
    array = np.asarray(x)
    return np.moveaxis(array, 0, -1) if hasattr(x, "numpy") and array.ndim == 3 else array


def _stacked(values):
    """The values as one array. Raises BadInput if their shapes differ, or values are masked."""
    for value in values:
        precision.check_unmasked("from_torch: an example or label", value)
    each = [np.asarray(value) for value in values]
    shapes = sorted({a.shape for a in each})
    if len(shapes) > 1:
        raise BadInput(
            "from_torch: all examples, and all labels, must have the same shape, but there are"
            f" {list(shapes[0])} and {list(shapes[1])}; resize or pad them"
        )
    if not each:
        raise BadInput("from_torch: the dataset has no examples")
    return np.stack(each)
