"""Tests the source of data sets that TFDS has prepared."""

import io
import os
import sys

import broken
import numpy as np
import optional
import pytest
from image_files import IMAGES, LABELS, check_one_domain
from inputs import complaint
from slow_cases import slow_but
from tfrecord_files import write_tfrecords

from fedjax_lab.data.formats import tfrecords
from fedjax_lab.data.sources import prepared


def prepare(folder, name: str, version: str, images, labels: list[int], **of_builder):
    """Prepares a small data set with a TFDS builder of this name; 5 examples are for training.

    Images of different sizes are a list of arrays. `of_builder` may have the feature names `image`,
    `label` and `other` (an additional class label), `config`, and TFDS's `file_format`.
    """
    library = optional.module("tensorflow_datasets")
    from PIL import Image

    image, label, other, config = map(of_builder.get, ("image", "label", "other", "config"))
    image, label = image or "image", label or "label"
    shape = images.shape[1:] if isinstance(images, np.ndarray) else (None, None, 3)
    features = {
        "id": library.features.Text(),
        image: library.features.Image(shape=shape),
        label: library.features.ClassLabel(names=[f"class {n}" for n in range(10)]),
    }
    if other:
        features[other] = library.features.ClassLabel(num_classes=3)

    def info(self):
        return library.core.DatasetInfo(
            builder=self,
            features=library.features.FeaturesDict(features),
            citation="@misc{small,\n  title={Small}\n}",
            license="CC BY 4.0",
        )

    def examples(self, rows):
        for row in rows:
            file = io.BytesIO()
            Image.fromarray(np.squeeze(images[row])).save(file, "png")
            file.seek(0)
            example = {"id": f"{row}", image: file, label: labels[row]}
            yield row, example | ({other: row % 3} if other else {})

    body = {
        "VERSION": library.core.Version(version),
        "BUILDER_CONFIGS": [library.core.BuilderConfig(name=config)] if config else [],
        "name": name,
        "_info": info,
        "_split_generators": lambda self, _: {
            "train": self._generate_examples(range(5)),
            "test": self._generate_examples(range(5, 7)),
        },
        "_generate_examples": examples,
        "__module__": __name__,
    }
    with library.core.registered.skip_registration():
        builder = type("Small", (library.core.GeneratorBasedBuilder,), body)
    file_format = of_builder.get("file_format", "array_record")
    builder(data_dir=str(folder), file_format=file_format).download_and_prepare()


def as_tfrecords(version):
    """Converts a data set prepared as array_record to TFDS's default format, tfrecord."""
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(version)
    raw = tensorflow_datasets.decode.DeserializeMethod.RAW_BYTES
    for split in ("train", "test"):
        records = list(builder.as_data_source(split, deserialize_method=raw))
        (file,) = version.glob(f"*-{split}.array_record-*")
        file.unlink()
        write_tfrecords(version / file.name.replace("array_record", "tfrecord"), records)
    info = version / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))


def in_order(data, images: np.ndarray) -> list[int]:
    return [int(np.flatnonzero((images == x).all((1, 2, 3)))[0]) for x in data.x]


FORMS = {  # {name of the form: (data set, images, format of the files)}
    "array_record": ("cifar10", IMAGES, "array_record"),
    "gray": ("mnist", IMAGES[:, :28, :28, :1], "array_record"),
    "tfrecord": ("cifar10", IMAGES, "tfrecord"),
    "parquet": ("cifar10", IMAGES, "parquet"),
}


@pytest.mark.parametrize("form", slow_but(["array_record", "gray", "tfrecord"], FORMS))
def test_tfds_reads_prepared_data_sets_of_each_format(form, tmp_path, monkeypatch):
    name, images, file_format = FORMS[form]
    written = {"file_format": "parquet"} if form == "parquet" else {}
    prepare(tmp_path, name, "3.0.2", images, LABELS, **written)
    if file_format == "tfrecord":
        as_tfrecords(tmp_path / name / "3.0.2")
    data = prepared.tfds(dataset=name, folder=str(tmp_path))
    check_one_domain(data, name, 5, 7)
    rows = in_order(data, images)
    assert sorted(rows[:5]) == [0, 1, 2, 3, 4] and sorted(rows[5:]) == [5, 6]
    assert data.y.tolist() == [LABELS[row] for row in rows]
    assert data.classes == tuple(f"class {n}" for n in range(10))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert np.array_equal(prepared.tfds(dataset=name).x, data.x)
    assert "tensorflow" not in sys.modules
    assert data.license == "CC BY 4.0" and data.citation == "@misc{small, title={Small} }"


def test_tfds_accepts_the_split_syntax_of_tfds(tmp_path):
    prepare(tmp_path, "cifar10", "3.0.2", IMAGES, LABELS)
    whole = in_order(prepared.tfds(folder=str(tmp_path)), IMAGES)
    settings = {"train_split": "train[:40%]", "test_split": "test+train[3:]"}
    for change in (lambda version: None, as_tfrecords):
        change(tmp_path / "cifar10" / "3.0.2")
        data = prepared.tfds(folder=str(tmp_path), **settings)
        assert in_order(data, IMAGES) == [*whole[:2], *whole[5:], *whole[3:5]]
        assert data.test.tolist() == [False] * 2 + [True] * 4
    message = complaint(prepared.tfds, folder=str(tmp_path), train_split="train[9:]")
    assert "Requested slice [9:5]" in message
    for train, test in (("train", "train[4:]"), ("test+train", "test"), ("train+train[:1]", "")):
        message = complaint(prepared.tfds, folder=str(tmp_path), train_split=train, test_split=test)
        assert "occur twice in config.data.train_split and config" in message
    assert not prepared.tfds(folder=str(tmp_path), train_split="train+test").test.any()
    message = complaint(prepared.tfds, folder=str(tmp_path), test_split="validation")
    assert "no split 'validation' (config.data.test_split); valid: test, train" in message


def test_tfds_accepts_configurations_and_versions(tmp_path):
    for config, images in (("fog", IMAGES), ("snow", IMAGES[::-1])):
        for version in ("1.0.0", "2.0.0"):
            prepare(tmp_path, "toy", version, images, LABELS, config=config)
    old = prepared.tfds(dataset="toy/snow:1.0.0", folder=str(tmp_path))
    assert old.y.tolist() == [LABELS[row] for row in in_order(old, IMAGES[::-1])]
    message = complaint(prepared.tfds, dataset="toy", folder=str(tmp_path))
    assert "no prepared toy" in message and "did you mean 'toy/fog'" in message
    message = complaint(prepared.tfds, dataset="toy/fog:3.0.0", folder=str(tmp_path))
    assert "did you mean 'toy/fog:" in message
    assert "NAME/CONFIG" in complaint(prepared.tfds, dataset="../toy", folder=str(tmp_path))


def test_tfds_finds_image_and_label_by_feature_type(tmp_path):
    images = [image[: 20 + row] for row, image in enumerate(IMAGES)]
    prepare(tmp_path, "toy", "1.0.0", images, LABELS, image="photo", label="kind", other="side")
    toy = {"dataset": "toy", "folder": str(tmp_path)}
    message = complaint(prepared.tfds, **toy, label="id")
    assert "id has TFDS's feature type Text, but config.data.label must be of type" in message
    assert "with --config.data.size=32" in complaint(prepared.tfds, **toy, label="kind")
    data = prepared.tfds(**toy, label="side", size=16, color="gray")
    assert data.x.shape == (7, 16, 16, 1) and data.classes == ("0", "1", "2")


def test_tfds_reads_the_newest_version(tmp_path):
    prepare(tmp_path, "cifar10", "3.9.0", IMAGES[::-1], LABELS)
    prepare(tmp_path, "cifar10", "3.10.0", IMAGES, LABELS)
    (tmp_path / "cifar10" / "4.0.0.incompleteABC").mkdir()
    (tmp_path / "cifar10" / "4.0.0").mkdir()  # without its dataset_info.json
    data = prepared.tfds(folder=str(tmp_path))
    assert data.y.tolist() == [LABELS[row] for row in in_order(data, IMAGES)]


SHARD = "cifar10-test.array_record-00000-of-00001"
DAMAGED = {  # {file: what it holds}
    "dataset_info.json": lambda c: c.replace(b'"array_record"', b'"tfrecord"'),
    "features.json": "{",
    SHARD: lambda c: c[:70],
}


def test_tfds_reports_unreadable_files(tmp_path):
    prepare(tmp_path, "cifar10", "3.0.2", IMAGES, LABELS)
    where = tmp_path / "cifar10" / "3.0.2"
    for name, content in [*DAMAGED.items(), (SHARD, None)]:
        whole = (where / name).read_bytes()
        broken.replace(where / name, content)
        message = complaint(prepared.tfds, folder=str(tmp_path))
        assert message.startswith(f"{where} cannot be read") and "tfds build cifar10" in message
        broken.replace(where / name, whole)


def test_an_unprepared_data_set_is_reported_with_the_build_command(tmp_path, monkeypatch):
    message = complaint(prepared.tfds, dataset="svhn_cropped", folder=str(tmp_path))
    assert f"{tmp_path} has no prepared svhn_cropped" in message
    command = f"tfds build svhn_cropped --file_format=array_record --data_dir={tmp_path}"
    assert command in message
    monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
    assert "/nowhere has no prepared cifar10" in complaint(prepared.tfds)
    optional.module("tensorflow_datasets")
    assert "did you mean 'cifar10'" in complaint(prepared.tfds, dataset="cifar", folder="/nowhere")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert "/nowhere has no prepared cifar: prepare it" in complaint(prepared.tfds, dataset="cifar")


CONTENTS = [b"one", b"", b"three" * 100]


def test_records_are_read(tmp_path):
    for name, contents in (("file", CONTENTS), ("empty", [])):
        write_tfrecords(tmp_path / name, contents)
        assert [record.content() for record in tfrecords.records(tmp_path / name)] == contents


def test_files_that_end_within_a_record_or_are_pipes_are_errors(tmp_path):
    file = tmp_path / "file"
    write_tfrecords(file, CONTENTS)
    whole = file.read_bytes()
    cut = [whole[:kept] for kept in (1, 11, 14, 18, 40, -1)]
    for content in (*cut, b"\xff" * 8 + whole[8:]):  # the last one declares a larger length
        file.write_bytes(content)
        with pytest.raises(ValueError, match="ends within record"):
            tfrecords.records(file)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe"):
        tfrecords.records(tmp_path / "pipe")
