"""EMNIST, Kuzushiji-49, MNIST and KMNIST: small data sets in the original formats."""

import numpy as np
import pytest
from image_files import check_one_domain
from inputs import complaint
from published import emnist_files, idx_of, k49_arrays, npz_of

from fedjax_lab.data import emnist, idx, k49, places


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with all files of EMNIST; the usual places are empty."""
    monkeypatch.setattr(places, "PLACES", ("/nowhere",))
    for name, content in emnist_files().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    "split, count, first, last",
    [
        ("byclass", 62, "0", "z"),
        ("bymerge", 47, "0", "t"),
        ("balanced", 47, "0", "t"),
        ("letters", 26, "A", "Z"),
        ("digits", 10, "0", "9"),
        ("mnist", 10, "0", "9"),
    ],
)
def test_every_split_has_its_classes_and_upright_images(folder, split, count, first, last):
    data = emnist.emnist(folder=str(folder), split=split)
    check_one_domain(data, "emnist", 4, 6)
    assert (len(data.classes), data.classes[0], data.classes[-1]) == (count, first, last)
    assert data.y[[0, 3, 4, 5]].tolist() == [0, count - 1, 0, count - 1]
    published = np.random.default_rng(0).integers(0, 256, (4, 28, 28)).astype(np.uint8)
    for row in range(28):
        np.testing.assert_array_equal(data.x[:4, row, :, 0], published[:, :, row])


def test_letters_that_look_alike_are_merged_into_one_class():
    merged = emnist.SPLITS["bymerge"]
    assert merged[10:36] == "ABCDEFGHIJKLMNOPQRSTUVWXYZ" and merged[36:] == "abdefghnqrt"
    assert emnist.SPLITS["byclass"][36:38] == "ab"


def test_torchvisions_folder_is_found(folder, tmp_path, monkeypatch):
    inner = tmp_path / "home/EMNIST/raw"
    inner.mkdir(parents=True)
    for name in emnist.files("letters"):
        (folder / f"{name}.gz").rename(inner / f"{name}.gz")
    assert len(emnist.emnist(folder=str(tmp_path / "home"), split="letters").x) == 6
    monkeypatch.setattr(places, "PLACES", (str(tmp_path / "home"),))
    assert len(emnist.emnist(split="letters").x) == 6
    assert "EMNIST balanced is in none of" in complaint(emnist.emnist)


def test_bad_settings_and_files_of_emnist_are_errors(folder):
    message = complaint(emnist.emnist, folder=str(folder), split="letter")
    assert "data.split" in message and "did you mean 'letters'?" in message
    labels = folder / f"{emnist.files('letters')[1]}.gz"
    for label in (0, 27):
        labels.write_bytes(idx_of(np.array([1, 2, label, 3], np.uint8)))
        message = complaint(emnist.emnist, folder=str(folder), split="letters")
        assert f"{label - 1} is not a label of EMNIST letters" in message
    labels.unlink()
    message = complaint(emnist.emnist, folder=str(folder), split="letters")
    assert f"{labels.with_suffix('')} (or" in message and "`fedjax-lab data get emnist`" in message


@pytest.mark.parametrize("source, classes", [(idx.mnist, "0 9"), (idx.kmnist, "o wo")])
def test_mnist_and_kmnist_have_named_classes(folder, source, classes):
    for name, other in zip(idx.FILES, emnist.files("digits"), strict=True):
        (folder / f"{name}.gz").write_bytes((folder / f"{other}.gz").read_bytes())
    data = source(folder=str(folder))
    check_one_domain(data, source.__name__, 4, 6)
    assert [data.classes[0], data.classes[-1]] == classes.split() and len(data.classes) == 10
    for name, other in zip(idx.FILES, emnist.files("letters"), strict=True):
        (folder / f"{name}.gz").write_bytes((folder / f"{other}.gz").read_bytes())
    assert "17 is not a label of " in complaint(source, folder=str(folder))
    assert f"`fedjax-lab data get {source.__name__}`" in complaint(source)


@pytest.fixture
def kuzushiji(tmp_path):
    """The four files of Kuzushiji-49 and their arrays."""
    arrays = k49_arrays()
    for name, array in zip(k49.FILES, arrays, strict=True):
        (tmp_path / name).write_bytes(npz_of({"arr_0": array}))
    return tmp_path, arrays


def test_kuzushiji_49_has_its_images_labels_and_classes(kuzushiji):
    folder, arrays = kuzushiji
    data = k49.k49(folder=str(folder))
    check_one_domain(data, "k49", 5, 8)
    assert np.array_equal(data.x[..., 0], np.concatenate(arrays[::2]))
    assert np.array_equal(data.y, np.concatenate(arrays[1::2]))
    assert len(set(data.classes)) == 49 and data.classes[:2] == ("a", "i")


@pytest.mark.parametrize(
    "number, array, said",
    [
        (0, np.zeros((5, 28, 28)), "has float64 [5, 28, 28], not uint8"),
        (0, np.zeros((5, 28, 27), np.uint8), "[5, 28, 27], not uint8"),
        (1, np.zeros(4, np.uint8), "has uint8 [4], not 5 labels"),
        (3, np.full(3, 49, np.uint8), "the labels are from 49 to 49, not 0 to 48"),
        (2, None, "is missing"),
    ],
)
def test_bad_files_of_kuzushiji_49_are_errors(kuzushiji, number, array, said):
    file = kuzushiji[0] / k49.FILES[number]
    file.unlink() if array is None else file.write_bytes(npz_of({"arr_0": array}))
    message = complaint(k49.k49, folder=str(kuzushiji[0]))
    assert str(file) in message and said in message and "`fedjax-lab data get k49`" in message
