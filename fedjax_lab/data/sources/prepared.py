"""Image data sets prepared by TensorFlow Datasets (TFDS), read without TensorFlow.

The formats tfrecord (TFDS's default), array_record and parquet are supported. Needs the extra
`tfds`. https://www.tensorflow.org/datasets/data_source
"""

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset, pooled
from fedjax_lab.data.formats import columns, encoded, tfrecords
from fedjax_lab.data.formats.encoded import Fetch
from fedjax_lab.data.formats.images import image_source
from fedjax_lab.errors import BadInput, cut, nearest, quoted

VERSION = r"\d+\.\d+\.\d+"
NAME = re.compile(rf"(?P<set>\w+(/[\w+-][\w.+-]*)?)(:(?P<version>{VERSION}))?")  # as in tfds.load


@image_source()
def tfds(
    *,
    dataset: str = "cifar10",
    folder: str = "",
    train_split: str = "train",
    test_split: str = "",
    image: str = "",
    label: str = "",
    size: encoded.Size = 0,
    color: encoded.Color = "auto",
) -> Dataset:
    """An image classification data set of TFDS, images uint8, in the order of its files.

    Decoded images are cached as in `pacs`.

    Args:
      dataset: a name as for tfds.load: NAME or NAME/CONFIG, either with :VERSION. Without a
        version, the newest prepared one is read.
      folder: TFDS's data_dir; empty: $TFDS_DATA_DIR, else ~/tensorflow_datasets.
      train_split: the training examples, in TFDS's notation: "train", "train[:80%]", "a+b".
      test_split: the test examples; empty: the split `test`, unless it does not exist or shares
        examples with the training examples.
      image: the feature with the images; needed if there are several.
      label: the feature with the classes; needed if there are several.
      size: the side to which images are resized; 0: images keep their size and must have the same.
      color: "rgb", "gray", or "auto": as the first image.

    Raises BadInput if the data set is not prepared, damaged, or not of this form.
    """
    version, remedy = _find(dataset, folder)
    with safe.remedied(remedy):
        with safe.reading(version, extra="tfds"):
            import tensorflow_datasets

            builder = tensorflow_datasets.builder_from_directory(version)
        split, training = _splits(builder, train_split, test_split, version)
        image = _feature(builder, "image", image, "Image", version)
        label = _feature(builder, "label", label, "ClassLabel", version)
        with safe.reading(version, extra="tfds"):
            fetch, count = _files(builder, split)
            parse = _parser(builder.info.features, image)
            y = _labels(fetch, count, parse, label)
            classes = tuple(builder.info.features[label].names)
        columns.check_labels(y, classes, str(version))
        made = pooled(None, [y[:training]], [y[training:]])

        def images(rows: np.ndarray) -> list[bytes]:
            with safe.reading(version, extra="tfds"):
                return [parse(record)[image] for record in fetch(rows)]

        x = encoded.pictures(
            images, count, str(version), size, color, "tfds", made["y"], made["test"]
        )
    x.read, info = safe.remedied(remedy)(x.read), builder.info
    return Dataset(
        **made | {"x": x},
        classes=classes,
        domains=(dataset,),
        license=info.redistribution_info.license,
        citation=" ".join(info.citation.split()),
    )


def newest(folder: Path) -> Path | None:
    """The folder of the highest version whose preparation is complete; None if there is none."""
    versions = [
        (tuple(map(int, file.parent.name.split("."))), file.parent)
        for file in folder.glob("*/dataset_info.json")
        if re.fullmatch(VERSION, file.parent.name)
    ]
    return max(versions)[1] if versions else None


def _find(dataset: str, folder: str) -> tuple[Path, str]:
    """The folder of the data set's version, and how to prepare it, for messages.

    Raises BadInput if it is not prepared.
    """
    name = NAME.fullmatch(dataset)
    if name is None:
        raise BadInput(
            f"config.data.dataset={quoted(dataset)} is not a TFDS name, which is NAME or"
            " NAME/CONFIG, optionally with :VERSION"
        )
    where = Path(folder or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    remedy = (
        "prepare it, where TensorFlow is installed, with `tfds build"
        f" {name['set']} --file_format=array_record --data_dir={where}`"
    )
    version = newest(where / name["set"])
    if name["version"] and version is not None:
        version = version.parent / name["version"]
    if version is None or not (version / "dataset_info.json").is_file():
        raise BadInput(f"{where} has no prepared {dataset}: {remedy}{_hint(where, dataset)}")
    with safe.reading(version, remedy):
        for file in version.glob("*.*"):
            safe.check_regular(file)
    return version, remedy


def _hint(where: Path, dataset: str) -> str:
    """A suggestion for the name of a data set that is not prepared."""
    files = (*where.glob("*/*/dataset_info.json"), *where.glob("*/*/*/dataset_info.json"))
    folders = {file.parent.relative_to(where) for file in files}
    prepared = {f"{at.parent}:{at.name}" if ":" in dataset else str(at.parent) for at in folders}
    first = re.split("[/:]", dataset)[0]
    names = {name for name in prepared if re.split("[/:]", name)[0] == first}
    if not names:
        names = prepared
        with contextlib.suppress(ImportError):
            import tensorflow_datasets

            names = {*prepared, *tensorflow_datasets.list_builders(with_community_datasets=False)}
    return "" if first in names or not names else f"; {cut(nearest(dataset, names), 200)}"


def _splits(builder: Any, train: str, test: str, version: Path) -> tuple[str, int]:
    """TFDS's name of all examples, training first, and the number of training examples."""
    there = builder.info.splits
    trained_on = [part.partition("[")[0] for part in train.split("+")]
    test = test or ("test" if "test" in there and "test" not in trained_on else "")
    tested_on = [part.partition("[")[0] for part in test.split("+")] if test else []
    columns.check_splits(trained_on, tested_on, there, str(version))
    both = f"{train}+{test}" if test else train
    with safe.reading(f"split {train!r} or {test!r} of {version}", f"it has {', '.join(there)}"):
        _check_apart(there, both, version)
        return both, there[train].num_examples


def _check_apart(there: Mapping, split: str, version: Path) -> None:
    """Raises BadInput if an example is named twice, for training and testing or for one of them."""
    import tensorflow_datasets

    taken: set[tuple[str, int]] = set()
    for part in tensorflow_datasets.core.ReadInstruction.from_spec(split).to_absolute(there):
        name = part.splitname
        rows = range(there[name].num_examples)[part.from_ : part.to]
        if not taken.isdisjoint((name, row) for row in rows):
            raise columns.used_twice(name, str(version))
        taken.update((name, row) for row in rows)


def _feature(builder: Any, key: str, name: str, kind: str, version: Path) -> str:
    """The feature that a setting names, or else the only suitable one of this TFDS class."""
    import tensorflow_datasets

    features = builder.info.features
    wanted = getattr(tensorflow_datasets.features, kind)
    fitting = sorted(name for name in features if isinstance(features[name], wanted))
    usual = [name for name in builder.info.supervised_keys or () if name in fitting]
    where = str(version)
    name = columns.choose(key, name, sorted(features), usual if len(usual) == 1 else fitting, where)
    if name not in fitting:
        raise BadInput(
            f"{where}: {name} has TFDS's feature type {type(features[name]).__name__}, but"
            f" config.data.{key} must be of type {kind}: {', '.join(fitting) or 'there is none'}"
        )
    return name


def _files(builder: Any, split: str) -> tuple[Fetch, int]:
    """A function that fetches records by their numbers, and the number of records."""
    count = builder.info.splits[split].num_examples
    if builder.info.file_format.value == "tfrecord":
        rows = _tfrecord_rows(builder.info.splits[split].file_instructions)
        return (lambda numbers: [rows[number].content() for number in numbers]), count
    import tensorflow_datasets

    raw = tensorflow_datasets.decode.DeserializeMethod.RAW_BYTES
    source = builder.as_data_source(split, deserialize_method=raw)
    if len(source) != count:  # for parts of a split: parquet files are always read as a whole
        raise ValueError(f"split {split} has {count} examples, but its files have {len(source)}")
    return (lambda numbers: source.__getitems__(numbers.tolist())), count


def _tfrecord_rows(instructions: Sequence) -> list[tfrecords.Record]:
    """The records that TFDS's file instructions select."""
    made: list[tfrecords.Record] = []
    for part in instructions:
        records = tfrecords.records(Path(part.filename))
        if len(records) != part.examples_in_shard:
            count = part.examples_in_shard
            raise ValueError(f"{part.filename} has {len(records)} records, not {count}")
        made += records[part.skip : part.skip + part.take]
    return made


def _parser(features: Any, image: str) -> Callable[[bytes], dict]:
    """A function that parses a record to an example; its image stays encoded."""
    import tensorflow_datasets

    decoders = {image: tensorflow_datasets.decode.SkipDecoding()}
    return partial(features.deserialize_example_np, decoders=decoders)


def _labels(fetch: Fetch, count: int, parse: Callable, label: str) -> np.ndarray:
    """The labels [R] int32."""
    records = encoded.in_order(fetch, count, "tfds")
    return np.fromiter((parse(record)[label] for record in records), np.int32, count)
