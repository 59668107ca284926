"""Tests the SVHN source on small files in the published format."""

import numpy as np
import pytest
from image_files import IMAGES, check_one_domain
from inputs import complaint
from scipy.io import savemat

from fedjax_lab.data import places, svhn


@pytest.fixture
def nothing_in_the_usual_places(monkeypatch):
    monkeypatch.setattr(places, "PLACES", ("/nowhere/a", "/nowhere/b"))


@pytest.fixture
def numbers(tmp_path):
    """A folder with the training file and the test file."""
    labels = np.array([10, 1, 9, 2, 10], np.uint8)
    for name, rows in zip(svhn.FILES, (slice(3), slice(3, 5)), strict=True):
        x = np.zeros((32, 32, 3, len(labels[rows])), np.uint8)
        for n, image in enumerate(IMAGES[:5][rows]):
            x[:, :, :, n] = image
        savemat(tmp_path / name, {"X": x, "y": labels[rows][:, None]}, do_compression=True)
    return tmp_path


def test_svhn_is_read_from_its_folder_or_the_usual_place(numbers, monkeypatch):
    data = svhn.svhn(folder=str(numbers))
    check_one_domain(data, "svhn", 3, 5)
    assert np.array_equal(data.x, IMAGES[:5])
    assert data.y.tolist() == [0, 1, 9, 2, 0] and data.classes == tuple("0123456789")
    inner = numbers / "svhn"
    inner.mkdir()
    for name in svhn.FILES:
        (numbers / name).rename(inner / name)
    monkeypatch.setattr(places, "PLACES", ("/nowhere", str(numbers)))
    assert np.array_equal(svhn.svhn().x, data.x)
    assert np.array_equal(svhn.svhn(folder=str(numbers)).x, data.x)


def test_missing_svhn_files_are_a_one_line_error(tmp_path, nothing_in_the_usual_places):
    for folder, place in (("", "/nowhere/a or /nowhere/b"), (str(tmp_path), str(tmp_path))):
        message = complaint(svhn.svhn, folder=folder)
        for part in (place, *svhn.FILES, "http://ufldl.stanford.edu/housenumbers", "data.folder"):
            assert part in message


X, Y = np.zeros((32, 32, 3, 2), np.uint8), np.ones((2, 1), np.uint8)


BROKEN_SVHN = {
    "missing": (None, "is missing"),
    "no X": ({"y": Y}, "X is object []"),
    "no y": ({"X": X}, "y is object []"),
    "floats": ({"X": X.astype(float), "y": Y}, "X is float64 [32, 32, 3, 2]"),
    "axes": ({"X": X.transpose(3, 0, 1, 2), "y": Y}, "X is uint8 [2, 32, 32, 3]"),
    "count": ({"X": X, "y": Y[:1]}, "y is uint8 [1, 1], not 2 labels"),
    "label": ({"X": X, "y": 11 * Y}, "label 11 is not in 1 .. 10"),
    "zero": ({"X": X, "y": 0 * Y}, "label 0 is not in 1 .. 10"),
    "fraction": ({"X": X, "y": 1.5 * Y}, "label 1.5 is not"),
}


@pytest.mark.parametrize("case", BROKEN_SVHN)
def test_invalid_svhn_files_are_a_one_line_error(case, numbers):
    content, expected = BROKEN_SVHN[case]
    file = numbers / svhn.FILES[1]
    file.unlink()
    if content is not None:
        savemat(file, content)
    message = complaint(svhn.svhn, folder=str(numbers))
    assert message.startswith(str(file)) and expected in message and "housenumbers" in message


@pytest.mark.parametrize("damage", [lambda c: c[:-40], lambda c: b"", lambda c: b"<html>" * 99])
def test_damaged_svhn_files_are_rejected(damage, numbers):
    file = numbers / svhn.FILES[0]
    file.write_bytes(damage(file.read_bytes()))
    assert f"{file} is damaged or not a MATLAB file" in complaint(svhn.svhn, folder=str(numbers))
