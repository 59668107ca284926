"""Tests the MedMNIST source on small files in the published format."""

import numpy as np
import pytest
from image_files import check_one_domain
from inputs import complaint
from published import medmnist_arrays, npz_of

from fedjax_lab.data import medmnist


def write(folder, name="pathmnist.npz", **arrays):
    """Writes a file of PathMNIST with some arrays replaced, or omitted if None; returns all."""
    made = {**medmnist_arrays(9), **arrays}
    content = npz_of({key: array for key, array in made.items() if array is not None})
    (folder / name).write_bytes(content)
    return made


@pytest.mark.parametrize("channels", [(), (3,)])
def test_validation_images_are_left_out_or_added_to_the_training_set(tmp_path, channels):
    made = write(tmp_path, **medmnist_arrays(9, channels=channels))
    for merge, names in ((False, ["train"]), (True, ["train", "val"])):
        data = medmnist.medmnist(folder=str(tmp_path), merge_valid=merge)
        check_one_domain(data, "pathmnist", 9 if merge else 6, 13 if merge else 10)
        x = np.concatenate([made[f"{name}_images"] for name in (*names, "test")])
        y = np.concatenate([made[f"{name}_labels"] for name in (*names, "test")])
        assert np.array_equal(data.x, x.reshape(*x.shape[:3], -1))
        assert np.array_equal(data.y, y[:, 0])
        assert data.classes[0] == "adipose" and len(data.classes) == 9


def test_each_image_size_is_read_from_a_separate_file(tmp_path):
    arrays = medmnist_arrays(5, size=64)
    (tmp_path / "medmnist").mkdir()
    write(tmp_path / "medmnist", "retinamnist_64.npz", **arrays)
    settings = {"folder": str(tmp_path), "dataset": "retinamnist"}
    assert medmnist.medmnist(**settings, size=64).x.shape == (10, 64, 64, 3)
    for size, expected in (
        (128, "files/retinamnist_128.npz"),
        (28, "`fedjax-lab data get retinamnist`"),
    ):
        assert expected in complaint(medmnist.medmnist, **settings, size=size)
    assert "data.size of medmnist must be one of 28, 64" in complaint(medmnist.medmnist, size=32)


def test_multilabel_and_unknown_data_sets_are_rejected(tmp_path):
    assert "14 labels for each image" in complaint(medmnist.medmnist, dataset="chestmnist")
    assert "did you mean 'pathmnist'?" in complaint(medmnist.medmnist, dataset="patmnist")


GRAY = np.zeros((4, 28, 28), np.uint8)
BROKEN = {
    "no test": ({"test_labels": None}, "not a file of MedMNIST"),
    "other size": ({"train_images": np.zeros((6, 64, 64, 3), np.uint8)}, "[6, 64, 64, 3], not"),
    "floats": ({"train_images": np.zeros((6, 28, 28, 3))}, "images are float64"),
    "mixed": ({"test_images": GRAY}, "only some of its splits have color images"),
    "several labels": ({"test_labels": np.zeros((4, 14), np.uint8)}, "uint8 [4, 14], not [N, 1]"),
    "count": ({"test_labels": np.zeros((5, 1), np.uint8)}, "uint8 [5, 1], not [N, 1]"),
    "label": ({"train_labels": np.full((6, 1), 9, np.uint8)}, "label 9 is not in 0 .. 8"),
    "empty": ({"test_images": GRAY[:0], "test_labels": GRAY[:0, :1, 0]}, "[0, 28, 28, 1], not"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_with_invalid_arrays_is_rejected(tmp_path, case):
    arrays, expected = BROKEN[case]
    write(tmp_path, **arrays)
    message = complaint(medmnist.medmnist, folder=str(tmp_path))
    assert message.startswith(f"{tmp_path / 'pathmnist.npz'}") and expected in message
    assert "`fedjax-lab data get pathmnist`" in message
