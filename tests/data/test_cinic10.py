"""CINIC-10: a small data set in the original format."""

import io

import numpy as np
import pytest
from image_files import check_listing, check_one_domain
from inputs import complaint
from PIL import Image
from published import cinic10_files

from fedjax_lab.data import cinic10 as module
from fedjax_lab.data.cinic10 import cinic10


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the whole data set in CINIC-10/."""
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "cache"))
    for path, content in cinic10_files().items():
        file = tmp_path / "CINIC-10" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return tmp_path


def pixels(part):
    """The images of a part, ordered by class and then by file name."""
    files = cinic10_files()
    names = [sorted(p for p in files if p.startswith(f"{part}/{c}/")) for c in module.CLASSES]
    return [np.asarray(Image.open(io.BytesIO(files[path]))) for path in sum(names, [])]


@pytest.mark.parametrize("merge", [False, True])
def test_the_validation_images_are_left_out_or_trained_on(folder, merge):
    data = cinic10(folder=str(folder), size=8, merge_valid=merge)
    parts = ["train", "valid", "test"] if merge else ["train", "test"]
    check_one_domain(data, "cinic10", 20 * (len(parts) - 1), 20 * len(parts))
    assert np.array_equal(data.x, np.concatenate([pixels(part) for part in parts]))
    assert data.y.tolist() == np.tile(np.repeat(np.arange(10), 2), len(parts)).tolist()
    assert data.classes[0] == "airplane" and data.classes[9] == "truck"
    check_listing(cinic10, folder=str(folder / "CINIC-10"), size=8, merge_valid=merge)


def test_a_class_without_images_is_an_error(folder):
    empty = folder / "CINIC-10/test/dog"
    for file in empty.iterdir():
        file.unlink()
    message = complaint(cinic10, folder=str(folder))
    assert f"{empty} has no images" in message and "`fedjax-lab data get cinic10`" in message
    assert "no train/airplane or " in complaint(cinic10, folder=str(empty))
    assert "must be from 8 to 512 pixels, got 7" in complaint(cinic10, folder=str(folder), size=7)
