"""IDX files: MNIST and FashionMNIST."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.data import idx


def idx_bytes(array: np.ndarray) -> bytes:
    """An array of uint8 in the IDX format."""
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    """A folder with plain training files and gzipped test files of a tiny set, and its arrays."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (7, 28, 28)).astype(np.uint8), np.array([3, 0, 9, 1, 1, 2, 4], "u1")
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, array in zip(idx.FILES, (x[:5], y[:5], x[5:], y[5:]), strict=True):
        if name.startswith("train"):
            (folder / name).write_bytes(idx_bytes(array))
        else:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
    return folder, x, y


def test_idx_reads_plain_and_gzipped_files(mnist):
    folder, x, y = mnist
    data = idx.idx(folder=str(folder))
    assert data.x.dtype == np.uint8 and np.array_equal(data.x, x[..., None])
    assert data.y.dtype == np.int32 and np.array_equal(data.y, y)
    assert data.test.tolist() == [False] * 5 + [True] * 2
    assert data.domain.tolist() == [0] * 7 and data.domains == ("tiny",)
    assert data.classes == tuple("0123456789")


def test_idx_counts_the_classes_if_there_are_more_than_ten(mnist):
    folder, _, _ = mnist
    (folder / idx.FILES[1]).write_bytes(idx_bytes(np.array([46, 1, 2, 3, 4], np.uint8)))
    assert len(idx.idx(folder=str(folder)).classes) == 47


def test_fashion_mnist_from_a_folder_has_named_classes(mnist):
    folder, x, _ = mnist
    data = idx.fashion_mnist(folder=str(folder))
    assert np.array_equal(data.x[..., 0], x)
    assert data.classes[0] == "T-shirt/top" and data.classes[9] == "Ankle boot"


def test_train_per_class_limits_the_training_images_of_each_class(mnist):
    folder, x, y = mnist
    data = idx.fashion_mnist(folder=str(folder), train_per_class=1)
    rows = [0, 1, 2, 3, 5, 6]  # labels 3, 0, 9, 1, 1; the two test images stay
    assert np.array_equal(data.x[..., 0], x[rows]) and np.array_equal(data.y, y[rows])
    assert data.test.tolist() == [False] * 4 + [True] * 2 and len(data.domain) == 6
    assert len(idx.fashion_mnist(folder=str(folder), train_per_class=9).x) == len(x)
    message = complaint(idx.fashion_mnist, folder=str(folder), train_per_class=-1)
    assert "data.train_per_class must not be negative" in message


def test_fashion_mnist_is_found_in_the_usual_places(mnist, tmp_path, monkeypatch):
    folder, x, _ = mnist
    partial = tmp_path / "partial"
    partial.mkdir()
    (partial / idx.FILES[0]).write_bytes(b"half a download")
    monkeypatch.setattr(idx.places, "PLACES", ())
    search = idx.FASHION._replace
    monkeypatch.setattr(idx, "FASHION", search(elsewhere=(str(partial), str(folder))))
    assert len(idx.fashion_mnist().x) == len(x)
    monkeypatch.setattr(idx, "FASHION", search(elsewhere=("/nowhere/a", "/nowhere/b")))
    message = complaint(idx.fashion_mnist)
    for part in ("/nowhere/a", "/nowhere/b", "apt install dataset-fashion-mnist", "data.folder"):
        assert part in message


IMAGES, LABELS = idx.FILES[:2]


NINE = idx_bytes(np.zeros((9, 28, 28), np.uint8))


FIVE = idx_bytes(np.zeros((5, 28, 28), np.uint8))


BROKEN = {
    "missing": (IMAGES, None, "is missing"),
    "labels missing": (LABELS, None, "is missing"),
    "truncated": (IMAGES, FIVE[:-1], "truncated, 3919 bytes instead of 3920"),
    "header truncated": (IMAGES, FIVE[:11], "truncated, it has only 11 bytes"),
    "empty": (IMAGES, b"", "truncated, it has only 0 bytes"),
    "too long": (IMAGES, FIVE + b"x", "too long"),
    "huge counts": (IMAGES, struct.pack(">4I", 0x803, *[2**32 - 1] * 3), "truncated"),
    "no examples": (IMAGES, idx_bytes(np.zeros((0, 28, 28), np.uint8)), "is empty"),
    "wrong magic": (IMAGES, b"PNG!" + FIVE, "holds something else"),
    "labels for images": (IMAGES, idx_bytes(np.zeros(5, np.uint8)), "holds labels, not images"),
    "images for labels": (LABELS, FIVE, "holds images, not labels"),
    "other count": (IMAGES, NINE, "holds 9 images"),
    "other size": (IMAGES, idx_bytes(np.zeros((5, 20, 28), np.uint8)), "20 x 28 and 28 x 28"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_error_says_what_is_wrong_with_an_idx_file(case, mnist):
    folder, _, _ = mnist
    name, content, expected = BROKEN[case]
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    message = complaint(idx.idx, folder=str(folder))
    assert expected in message and "--config.data.folder" in message
    assert (str(folder) if case == "other size" else str(folder / name)) in message
    assert "apt install dataset-fashion-mnist" in complaint(idx.fashion_mnist, folder=str(folder))


@pytest.mark.parametrize("damage", [lambda c: c[:-20], lambda c: b"no gzip", lambda c: b"\x1f\x8b"])
def test_a_corrupt_gzip_file_is_an_error(damage, mnist):
    folder, _, _ = mnist
    file = folder / f"{idx.FILES[2]}.gz"
    file.write_bytes(damage(file.read_bytes()))
    assert f"{file} cannot be read" in complaint(idx.idx, folder=str(folder))


def test_a_gzip_file_with_a_flipped_bit_is_an_error(mnist):
    folder, _, _ = mnist
    file = folder / f"{idx.FILES[2]}.gz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)
    assert str(file) in complaint(idx.idx, folder=str(folder))


def test_a_missing_idx_folder_is_an_error():
    assert "--config.data.folder" in complaint(idx.idx, folder="")
    assert "/nowhere is not a folder" in complaint(idx.idx, folder="/nowhere")


def test_fashion_mnist_rejects_labels_of_another_data_set(mnist):
    folder, _, _ = mnist
    (folder / LABELS).write_bytes(idx_bytes(np.array([46, 1, 2, 3, 4], np.uint8)))
    assert "46 is not a label" in complaint(idx.fashion_mnist, folder=str(folder))


@pytest.mark.skipif(
    not all(idx.find(Path(idx.FASHION.elsewhere[0]), name) for name in idx.FILES),
    reason="dataset-fashion-mnist is not installed",
)
def test_the_installed_fashion_mnist_has_the_published_sizes():
    data = idx.fashion_mnist()
    assert data.x.shape == (70_000, 28, 28, 1) and data.test.sum() == 10_000
    assert np.bincount(data.y).tolist() == [7_000] * 10
    assert not data.test[:60_000].any()
