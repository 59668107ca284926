"""What TFDS has prepared."""

import io
import sys

import numpy as np
import pytest
from image_files import IMAGES, LABELS, check_one_domain
from inputs import complaint

from fedjax_lab.data import prepared


def prepare(folder, name: str, version: str, images: np.ndarray, labels: list[int]):
    """A small set in TFDS's own files, as its builder of this name lays it out: 5 to train."""
    library = pytest.importorskip("tensorflow_datasets")
    from PIL import Image

    features = {
        "id": library.features.Text(),
        "image": library.features.Image(shape=images.shape[1:]),
        "label": library.features.ClassLabel(names=[f"class {n}" for n in range(10)]),
    }

    def info(self):
        return library.core.DatasetInfo(
            builder=self, features=library.features.FeaturesDict(features)
        )

    def examples(self, rows):
        for row in rows:
            file = io.BytesIO()
            Image.fromarray(np.squeeze(images[row])).save(file, "png")
            file.seek(0)
            yield row, {"id": f"{row}", "image": file, "label": labels[row]}

    body = {
        "VERSION": library.core.Version(version),
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
    builder(data_dir=str(folder), file_format="array_record").download_and_prepare()


def in_order(data, images: np.ndarray) -> list[int]:
    """Which image each row is."""
    return [int(np.flatnonzero((images == x).all((1, 2, 3)))[0]) for x in data.x]


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_tfds_reads_what_it_has_prepared(name, tmp_path, monkeypatch):
    images = IMAGES if name == "cifar10" else IMAGES[:, :28, :28, :1]
    prepare(tmp_path, name, "3.0.2", images, LABELS)
    data = prepared.tfds(dataset=name, folder=str(tmp_path))
    check_one_domain(data, name, 5, 7)
    rows = in_order(data, images)
    assert sorted(rows[:5]) == [0, 1, 2, 3, 4] and sorted(rows[5:]) == [5, 6]
    assert data.y.tolist() == [LABELS[row] for row in rows]
    assert data.classes == tuple(f"class {n}" for n in range(10))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert np.array_equal(prepared.tfds(dataset=name).x, data.x)
    assert "tensorflow" not in sys.modules


def test_tfds_reads_the_newest_version(tmp_path):
    prepare(tmp_path, "cifar10", "3.9.0", IMAGES[::-1], LABELS)
    prepare(tmp_path, "cifar10", "3.10.0", IMAGES, LABELS)
    (tmp_path / "cifar10" / "4.0.0.incompleteABC").mkdir()
    (tmp_path / "cifar10" / "4.0.0").mkdir()  # without its dataset_info.json
    data = prepared.tfds(folder=str(tmp_path))
    assert data.y.tolist() == [LABELS[row] for row in in_order(data, IMAGES)]


@pytest.mark.parametrize("case", ["format", "features", "truncated", "shard missing"])
def test_tfds_says_what_it_cannot_read(case, tmp_path):
    prepare(tmp_path, "cifar10", "3.0.2", IMAGES, LABELS)
    where = tmp_path / "cifar10" / "3.0.2"
    shard = where / "cifar10-test.array_record-00000-of-00001"
    if case == "format":
        info = where / "dataset_info.json"
        info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    elif case == "features":
        (where / "features.json").write_text("{")
    elif case == "truncated":
        shard.write_bytes(shard.read_bytes()[:70])
    else:
        shard.unlink()
    message = complaint(prepared.tfds, folder=str(tmp_path))
    assert message.startswith(f"{where} cannot be read") and "tfds build cifar10" in message


def test_tfds_that_is_not_prepared(tmp_path, monkeypatch):
    message = complaint(prepared.tfds, dataset="svhn_cropped", folder=str(tmp_path))
    assert f"{tmp_path} has no prepared svhn_cropped" in message
    command = f"tfds build svhn_cropped --file_format=array_record --data_dir={tmp_path}"
    assert command in message
    monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
    assert "/nowhere has no prepared cifar10" in complaint(prepared.tfds)
    assert "did you mean 'cifar10'" in complaint(prepared.tfds, dataset="cifar")  # TFDS has it


def test_tfds_without_the_extra(tmp_path, monkeypatch):
    (tmp_path / "cifar10" / "3.0.2").mkdir(parents=True)
    (tmp_path / "cifar10" / "3.0.2" / "dataset_info.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    message = complaint(prepared.tfds, folder=str(tmp_path))
    assert "tensorflow_datasets" in message and "pip install 'fedjax_lab[tfds]'" in message
