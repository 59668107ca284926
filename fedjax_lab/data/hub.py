"""Data sets of Hugging Face's library `datasets`: saved folders, its cache, or the hub by name.

Needs the extra `hub`. Since version 4 the library runs no code that comes with a data set.
https://huggingface.co/docs/datasets
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.data import columns, encoded, safe, text_rows
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.images import decoded
from fedjax_lab.data.text_files import LENGTH, TASKS, VOCABULARY, Tokens, check
from fedjax_lab.errors import BadInput, nearest, quoted

SAVED = ("dataset_dict.json", "state.json")  # that save_to_disk writes: of several splits, of one
REMEDY = (
    "config.data.dataset takes a folder of save_to_disk, one of Parquet, CSV, JSON or image files,"
    " or a name on the hub; where there is a network, datasets.load_dataset fetches that once"
)
IMAGE_KEYS = {"bytes", "path"}  # of an image, where a Parquet file does not say that it is one


@decoded
def huggingface(
    *,
    dataset: str = "",
    subset: str = "",
    train_split: str = "train",
    test_split: str = "",
    image: str = "",
    text: str = "",
    label: str = "",
    client: str = "",
    domain: str = "",
    size: int = 0,
    color: str = "auto",
    task: str = TASKS[0],
    tokenizer: str = text_rows.BUILT_IN[0],
    vocabulary: int = VOCABULARY,
    length: int = LENGTH,
) -> Dataset:
    """A set of images, x [R, H, W, channels] uint8, or of texts, x [R, length] token ids.

    Decoded images are kept as those of `pacs` are.

    Args:
      dataset: a folder that save_to_disk wrote; a folder of Parquet, CSV, JSON or image files as
        datasets.load_dataset takes it; or a name on the hub. Of a name the library's cache is read
        first; the network is used only for what is not there, and not if HF_HUB_OFFLINE=1.
      subset: which of the configurations that a set on the hub has.
      train_split: the training examples: a split, or several as "train+validation".
      test_split: the test examples; without it the split `test`, or none where there is none, or
        where that is among the training examples.
      image: the column of the images; needed where there are several.
      text: the column of the texts; needed where there are several, or images besides.
      label: that of the labels: classes, whole numbers, or names; needed unless there is one of
        classes, or one that is called `label`.
      client: the column that tells the user of each example, for partition by_client.
      domain: the one that tells its domain; without it there is a single domain.
      size: the side to which images are resized; 0: they stay as they are, and must be of one size.
      color: "rgb", "gray", or "auto": as the first image.
      task: of texts: "classify", or "next_word", which needs no label; see `text_files`.
      tokenizer: of texts: "hash", "words", or a tokenizer.json of transformers; see `text_files`.
      vocabulary: the number of token ids of the tokenizers "hash" and "words".
      length: the tokens of an example.

    Raises BadInput if it cannot be had, is damaged, or no such set.
    """
    encoded.check_form(size, color)
    tokens = Tokens(task, tokenizer, vocabulary, length)
    check(tokens)
    splits = _loaded(dataset, subset)
    trained_on = train_split.split("+")
    if not test_split and "test" in splits and "test" not in trained_on:
        test_split = "test"
    _check_apart([*trained_on, *filter(None, test_split.split("+"))], dataset)
    train = _joined(splits, "train_split", train_split, dataset)
    both = [train, _joined(splits, "test_split", test_split, dataset)] if test_split else [train]
    named = {"image": image, "text": text, "label": label, "client": client, "domain": domain}
    named = _columns(train.features, named, task, dataset)
    wanted = sorted({*filter(None, named.values())})
    with safe.reading(dataset, REMEDY):
        table = _concatenated([part.select_columns(wanted) for part in both])
    made = _without_x(table, named, dataset, len(train), train.info)
    if named["image"]:
        return made._replace(x=_images(table, named["image"], dataset, size, color, made))
    return _of_texts(made, _column(table, named["text"], dataset).to_pylist(), tokens)


def _without_x(table: Any, named: Mapping[str, str], where: str, training: int, info: Any):
    """The Dataset of a table whose first `training` rows are not for tests, but for its x."""
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
        license=info.license or "",
        citation=" ".join((info.citation or "").split()),
    )


# What the library gives


def _loaded(dataset: str, subset: str) -> Mapping[str, Any]:
    """The splits by name."""
    if not dataset:
        raise BadInput(f"config.data.dataset is empty: {REMEDY}")
    try:
        import datasets
    except ImportError as error:
        raise BadInput(f"a package is missing ({error}): pip install 'fedjax_lab[hub]'") from error
    folder = Path(dataset).expanduser()
    with safe.reading(dataset, REMEDY), _silenced():
        if not folder.is_dir():
            return _by_name(dataset, subset)
        for file in folder.rglob("*"):
            if not file.is_dir():
                safe.check_regular(file)
        if not any((folder / name).is_file() for name in SAVED):
            return _generated(str(folder), subset)
        if subset:
            raise BadInput(f"{dataset} has no configurations (config.data.subset={quoted(subset)})")
        made = datasets.load_from_disk(folder)
        return made if isinstance(made, dict) else {"train": made}


def _by_name(dataset: str, subset: str) -> Mapping[str, Any]:
    """The splits of a set on the hub, from the cache if they are there."""
    import datasets

    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", dataset):
        raise FileNotFoundError("no such folder, and no name on the hub")
    if dataset in getattr(datasets.packaged_modules, "_PACKAGED_DATASETS_MODULES", ()):
        raise ValueError("it is a format, which would be looked for in the current folder")
    online = not datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        return _generated(dataset, subset)
    except (ConnectionError, ValueError):  # not in the cache, or not this configuration
        if not online:
            raise
    finally:
        datasets.config.HF_HUB_OFFLINE = not online
    return _generated(dataset, subset)


def _generated(name: str, subset: str) -> Mapping[str, Any]:
    """What the library makes of a folder or a name; the first error, where it wraps one."""
    import datasets

    try:
        return datasets.load_dataset(name, subset or None)
    except datasets.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Inside, the libraries log nothing about the files that they read or download again."""
    import datasets
    import huggingface_hub

    loggers = (datasets.logging, huggingface_hub.logging)
    before = [logger.get_verbosity() for logger in loggers]
    for logger in loggers:
        logger.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, verbosity in zip(loggers, before, strict=True):
            logger.set_verbosity(verbosity)


def _check_apart(names: Sequence[str], where: str) -> None:
    """BadInput where a split is named twice, for training and for tests or for one of them."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise BadInput(
            f"{where}: split {quoted(twice[0])} is named twice in config.data.train_split and"
            " config.data.test_split; no example may be in both, or twice in one"
        )


def _joined(splits: Mapping[str, Any], key: str, names: str, where: str) -> Any:
    """The table of one split, or of several as "train+validation"."""
    parts = names.split("+")
    for name in parts:
        if name not in splits:
            hint = nearest(name, splits)
            raise BadInput(f"{where} has no split {quoted(name)} (config.data.{key}); {hint}")
    with safe.reading(where, REMEDY):
        return _concatenated([splits[name] for name in parts])


def _concatenated(tables: Sequence) -> Any:
    """All rows of tables with the same columns; an error where one is damaged."""
    import datasets

    for table in tables:
        table.data.validate(full=True)
    return datasets.concatenate_datasets(list(tables))


# Columns


def _columns(features: Mapping, named: Mapping[str, str], task: str, where: str) -> dict[str, str]:
    """The column of each kind, empty where there is none; BadInput where that is not clear."""
    import datasets

    there = list(features)
    if named["image"] and named["text"]:
        raise BadInput("config.data.image and config.data.text are both set: leave one of them out")
    for key in ("client", "domain"):
        if named[key]:
            columns.check(key, named[key], there, where)
    free = [name for name in there if name not in (named["client"], named["domain"])]
    made = dict(named)
    if task == "classify":
        classes = [name for name in free if isinstance(features[name], datasets.ClassLabel)]
        usual = classes or [name for name in free if name == "label"]
        made["label"] = columns.choose("label", named["label"], there, usual, where)
    images = [name for name in there if _is_image(features[name])]
    texts = [name for name in free if _is_text(features[name]) and name != made["label"]]
    is_image = named["image"] or (images and not named["text"] and task == "classify")
    kind, fitting = ("image", images) if is_image else ("text", texts)
    made[kind] = columns.choose(kind, named[kind], there, fitting, where)
    if made[kind] not in fitting:
        what = quoted(features[made[kind]])
        raise BadInput(
            f"{where}: column {made[kind]} of config.data.{kind} is no {kind} but {what}"
        )
    return made


def _is_image(feature: Any) -> bool:
    import datasets

    return isinstance(feature, datasets.Image) or (
        isinstance(feature, dict) and feature.keys() == IMAGE_KEYS
    )


def _is_text(feature: Any) -> bool:
    return getattr(feature, "dtype", None) in ("string", "large_string")


def _column(table: Any, name: str, where: str) -> Any:
    """A column as Arrow stores it; BadInput where something is missing."""
    with safe.reading(where, REMEDY):
        column = table.select_columns([name]).with_format("arrow")[:][name]
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise BadInput(f"{where}: column {name} is empty in row {row}")
        return column


def _numbers(table: Any, name: str, where: str) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The number of each entry of a column [R] int32 and the names of numbers; none without one."""
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
    """The same of users or domains; the names of classes that no row has are left out."""
    numbers, names = _numbers(table, name, where)
    if numbers is None:
        return None, ()
    occurring, numbers = np.unique(numbers, return_inverse=True)
    return numbers.astype(np.int32), tuple(names[number] for number in occurring)


def _images(table, name, where, size, color, made):
    """The images of a column, not decoded yet; made: what is known of them besides."""
    import datasets

    _column(table, name, where)  # is complete
    with safe.reading(where, REMEDY):
        table = table.select_columns([name]).cast_column(name, datasets.Image(decode=False))

    def fetch(rows: np.ndarray) -> list[bytes]:
        with safe.reading(where, REMEDY):
            files = table[rows.tolist()][name]
            return [file["bytes"] or safe.content(Path(file["path"])) for file in files]

    files = encoded.Encoded(fetch, len(table), where, REMEDY)
    digest = encoded.digest(files, made.y, made.domain, made.test)
    return encoded.pictures(files, size, color, f"hub-{digest}")


def _of_texts(made: Dataset, texts: Sequence[str], tokens: Tokens) -> Dataset:
    """The Dataset with the examples of its texts; words are counted in those to train on."""
    training = texts[: int(np.sum(~made.test))]
    words = text_rows.make_tokenizer(tokens.tokenizer, tokens.vocabulary, training)
    ids = [words.encode(text) for text in texts]
    predict = tokens.task == "next_word"
    x, y, row = text_rows.examples(ids, made.y, predict, tokens.length, words.size)
    return made._replace(
        x=x,
        y=y,
        domain=made.domain[row],
        origin=row.astype(np.int32) if predict else None,
        test=made.test[row],
        client=None if made.client is None else made.client[row],
        classes=words.words if predict else made.classes,
    )
