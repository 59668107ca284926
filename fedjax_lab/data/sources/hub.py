"""Data sets of Hugging Face's library `datasets`: saved folders, its cache, or the hub.

Needs the extra `hub`. Since version 4 the library runs no code that comes with a data set.
https://huggingface.co/docs/datasets
"""

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats import columns, encoded, text_rows
from fedjax_lab.data.formats.images import image_source
from fedjax_lab.data.formats.text_rows import TextTask, Vocabulary
from fedjax_lab.data.places import path_of
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.ranges import Positive

SAVED = ("dataset_dict.json", "state.json")  # written by save_to_disk for several splits, for one
REMEDY = (
    "config.data.dataset takes a folder written by save_to_disk, a folder of Parquet, CSV, JSON or"
    " image files, or a name on the hub, which datasets.load_dataset fetches over the network"
)
BLANK = "{} ".format  # with a blank, which `as_name` removes, pandas does not read NA as missing
IMAGE_KEYS = {"bytes", "path"}  # fields of an image in a Parquet file without type information


@image_source(REMEDY)
def huggingface(
    *,
    dataset: Any = "",
    subset: str = "",
    train_split: str = "train",
    test_split: str = "",
    image: str = "",
    text: str = "",
    label: str = "",
    client: str = "",
    domain: str = "",
    group: str = "",
    size: encoded.Size = 0,
    color: encoded.Color = "auto",
    task: TextTask = "classify",
    tokenizer: str = "hash",
    vocabulary: Vocabulary = 10_000,
    length: Positive[int] = 64,
) -> Dataset:
    """A data set of images, x [R, H, W, channels] uint8, or of texts, x [R, length] token ids.

    Decoded images are cached as in `pacs`.

    Args:
      dataset: a folder written by save_to_disk; a folder of Parquet, CSV, JSON or image files, as
        for datasets.load_dataset; or a name on the hub. For a name, the library's cache is read
        first; the network is used only for what is not cached, and never if HF_HUB_OFFLINE=1. In
        Python also a Dataset or a DatasetDict; see `from_hub`.
      subset: the configuration of a data set on the hub.
      train_split: the training examples: a split, or several as "train+validation".
      test_split: the test examples; empty: the split `test`, unless it does not exist or is among
        the training examples.
      image: the column of the images; needed if there are several.
      text: the column of the texts; needed if there are several, or if there are also images.
      label: the column of the labels: class labels, integers or names; needed unless there is one
        column of class labels, or one called `label`.
      client: the column with the user of each example, for partition by_client.
      domain: the column with the domain of each example; empty: there is a single domain.
      group: the column with groups of examples, such as patients, that config.data.test never
        divides. In CSV files, the columns client, domain and group are read as text.
      size: the side to which images are resized; 0: images keep their size and must have the same.
      color: "rgb", "gray", or "auto": as the first image.
      task: for texts: "classify", or "next_word", which needs no label; see `text_files`.
      tokenizer: for texts: "hash", "words", or a tokenizer.json of transformers; see `text_files`.
      vocabulary: the number of token ids of the tokenizers "hash" and "words".
      length: the number of tokens of an example.

    Raises BadInput if the data set is not available, damaged, or not of this form.
    """
    tokens = text_rows.checked(task, tokenizer, vocabulary, length)
    names = {"client": client, "domain": domain, "group": group}
    splits = _loaded(dataset, subset, [*filter(None, names.values())])
    dataset = dataset if isinstance(dataset, str) else "from_hub"  # from here on a name
    train, *test = _tables(splits, train_split, test_split, dataset)
    named = {"image": image, "text": text, "label": label, **names}
    named = _columns(train.features, named, task, dataset)
    wanted = sorted({*filter(None, named.values())})
    with safe.reading(dataset):
        table = _concatenated([part.select_columns(wanted) for part in (train, *test)])
    made = _without_x(table, named, dataset, len(train), train.info)
    if named["image"]:
        return made._replace(x=_images(table, named["image"], dataset, size, color, made))
    return text_rows.text_dataset(made, _column(table, named["text"], dataset).to_pylist(), tokens)


def _without_x(table: Any, named: Mapping[str, str], where: str, training: int, info: Any):
    """The Dataset of a table, without x; the first `training` rows are the training examples."""
    y, classes = _numbers(table, named["label"], where)
    client, users = _groups(table, named["client"], where)
    domain, domains = _groups(table, named["domain"], where)
    return Dataset(
        x=None,
        y=np.zeros(len(table), np.int32) if y is None else y,
        domain=np.zeros(len(table), np.int32) if domain is None else domain,
        test=np.arange(len(table)) >= training,
        classes=classes,
        domains=domains or (Path(where).name,),
        client=client,
        users=users,
        origin=_groups(table, named["group"], where)[0],
        license=info.license or "",
        citation=" ".join((info.citation or "").split()),
    )


# Loading


def _loaded(dataset: Any, subset: str, names: Sequence[str]) -> Mapping[str, Any]:
    """The splits, by name. names: the columns whose values are names, which may be of digits."""
    if not isinstance(dataset, str):
        return dataset if isinstance(dataset, Mapping) else {"train": dataset}
    folder = path_of(dataset, REMEDY, "dataset")
    with safe.reading(dataset, extra="hub"):
        import datasets
    with safe.reading(dataset), _silenced():
        if not folder.is_dir():
            return _by_name(dataset, subset, names)
        for file in folder.rglob("*"):
            if not file.is_dir():
                safe.check_regular(file)
        if not any((folder / name).is_file() for name in SAVED):
            return _generated(str(folder), subset, names)
        if subset:
            raise BadInput(f"{dataset} has no configurations (config.data.subset={quoted(subset)})")
        _check_inside(folder)
        made = datasets.load_from_disk(folder)
        return made if isinstance(made, dict) else {"train": made}


def _check_inside(folder: Path) -> None:
    """Raises ValueError if the files of save_to_disk name others outside of their folders."""
    for file in (file for name in SAVED for file in folder.rglob(name)):
        facts = json.loads(safe.content(file))
        names = [*facts.get("splits", ()), *(d["filename"] for d in facts.get("_data_files", ()))]
        for name in names:
            if Path(name).name != name or name == os.pardir:
                raise ValueError(f"{file.relative_to(folder)} names {quoted(name)}, outside of it")


def _by_name(dataset: str, subset: str, names: Sequence[str]) -> Mapping[str, Any]:
    """The splits of a data set on the hub, from the cache if possible."""
    import datasets

    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", dataset):
        raise FileNotFoundError("it is neither a folder nor a possible name on the hub")
    if dataset in getattr(datasets.packaged_modules, "_PACKAGED_DATASETS_MODULES", ()):
        raise ValueError("it is the name of a file format, not of a data set")
    online = not datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        return _generated(dataset, subset, names)
    except (ConnectionError, ValueError):  # not in the cache, or not this configuration
        if not online:
            raise
    finally:
        datasets.config.HF_HUB_OFFLINE = not online
    return _generated(dataset, subset, names)


def _generated(name: str, subset: str, names: Sequence[str]) -> Mapping[str, Any]:
    """The splits that the library loads; if it wraps an error, the original error is raised."""
    import datasets

    try:
        made = datasets.load_dataset_builder(name, subset or None)
        is_csv = hasattr(made.config, "converters")  # of pandas, which would read 07 as 7
        as_text = {"converters": dict.fromkeys(names, BLANK)} if names and is_csv else {}
        return datasets.load_dataset(name, subset or None, **as_text)
    except datasets.exceptions.DatasetGenerationError as error:
        original = error.__cause__ or error
    raise original  # not in the handler, where Python would make the wrapper its context: a circle


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Inside the context, the libraries log nothing about reading and downloading files."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _tables(splits: Mapping[str, Any], train: str, test: str, where: str) -> list[Any]:
    """The table of the training examples, and that of the test examples if there are any."""
    training = train.split("+")
    if not test and "test" in splits and "test" not in training:
        test = "test"
    testing = test.split("+") if test else []
    both = [*training, *testing]
    if twice := [name for name in both if both.count(name) > 1]:
        raise columns.used_twice(twice[0], where)
    columns.check_splits(training, testing, splits, where)
    each = [[splits[name] for name in names] for names in (training, testing) if names]
    with safe.reading(where):
        return [_concatenated(tables) for tables in each]


def _concatenated(tables: Sequence) -> Any:
    """All rows of tables with the same columns; raises an error if a table is damaged."""
    import datasets

    for table in tables:
        table.data.validate(full=True)
    return datasets.concatenate_datasets(list(tables))


# Columns


def _columns(features: Mapping, named: Mapping[str, str], task: str, where: str) -> dict[str, str]:
    """The column of each kind, "" if there is none. Raises BadInput if the choice is ambiguous."""
    import datasets

    there = list(features)
    if named["image"] and named["text"]:
        raise BadInput("config.data.image and config.data.text are both set; set only one of them")
    names = {key: named[key] for key in ("client", "domain", "group") if named[key]}
    for key, name in names.items():
        columns.check(key, name, there, where)
    free = [name for name in there if name not in names.values()]
    made = dict(named)
    if task == "classify":
        classes = [name for name in free if isinstance(features[name], datasets.ClassLabel)]
        usual = classes or [name for name in free if name == "label"]
        made["label"] = columns.choose("label", named["label"], there, usual, where)
    images = [name for name in there if _is_image(features[name])]
    kinds = {name: getattr(features[name], "dtype", None) for name in free}
    texts = [n for n in free if kinds[n] in ("string", "large_string") and n != made["label"]]
    is_image = named["image"] or (images and not named["text"] and task == "classify")
    kind, fitting = ("image", images) if is_image else ("text", texts)
    made[kind] = columns.choose(kind, named[kind], there, fitting, where)
    if made[kind] not in fitting:
        what = quoted(features[made[kind]])
        raise BadInput(
            f"{where}: column {made[kind]} (config.data.{kind}) is not of type {kind}, but {what}"
        )
    return made


def _is_image(feature: Any) -> bool:
    import datasets

    return isinstance(feature, datasets.Image) or (
        isinstance(feature, dict) and feature.keys() == IMAGE_KEYS
    )


def _column(table: Any, name: str, where: str) -> Any:
    """A column in Arrow's format. Raises BadInput if an entry is missing."""
    with safe.reading(where):
        column = table.select_columns([name]).with_format("arrow")[:][name]
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise BadInput(f"{where}: column {name} is empty in row {row}")
        return column


def _numbers(table: Any, name: str, where: str) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The number [R] int32 of each entry of a column, and the names; (None, ()) if name is ""."""
    if not name:
        return None, ()
    values = _column(table, name, where).to_pylist()
    names = getattr(table.features[name], "names", None)
    if names is None:
        return columns.numbered(values, f"{where}: column {name}")
    y = np.array(values, np.int64)
    columns.check_labels(y, names, f"{where}: column {name}")
    return y.astype(np.int32), tuple(names)


def _groups(table: Any, name: str, where: str) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """As `_numbers`, for users, domains or groups; names that occur in no row are left out."""
    numbers, names = _numbers(table, name, where)
    if numbers is None:
        return None, ()
    each = [names[number] for number in numbers]
    if "" in each:
        raise BadInput(f"{where}: column {name} is empty in row {each.index('')}")
    declared = getattr(table.features[name], "names", None)
    there = set(each)
    ordered = [n for n in names if n in there] if declared else columns.sorted_names(there)
    return columns.positions(each, ordered), tuple(ordered)


def _images(table, name, where, size, color, made):
    """The images of a column as a lazy array; `made` has the labels, domains and test flags."""
    import datasets

    _column(table, name, where)  # raises BadInput if an image is missing
    with safe.reading(where):
        table = table.select_columns([name]).cast_column(name, datasets.Image(decode=False))

    def fetch(rows: np.ndarray) -> list[bytes]:
        with safe.reading(where):
            files = table[rows.tolist()][name]
            return [file["bytes"] or safe.content(Path(file["path"])) for file in files]

    return encoded.pictures(
        fetch, len(table), where, size, color, "hub", made.y, made.domain, made.test
    )
