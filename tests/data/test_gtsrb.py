"""GTSRB: a small data set in the original format."""

import io

import numpy as np
import pytest
from domain_files import naive_resize
from image_files import check_listing, check_one_domain
from inputs import complaint
from PIL import Image
from published import TITLE, gtsrb_files

from fedjax_lab.data import gtsrb as module
from fedjax_lab.data.gtsrb import gtsrb


def write(folder, files):
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "cache"))
    write(tmp_path, gtsrb_files())
    return tmp_path


@pytest.mark.parametrize("roi", [False, True])
def test_images_are_whole_or_cropped_to_the_sign(folder, roi):
    data = gtsrb(folder=str(folder), size=8, roi=roi)
    check_one_domain(data, "gtsrb", 43, 48)
    assert data.y.tolist() == [*range(43), 42, 41, 40, 39, 38] and len(data.classes) == 43
    files = [content for path, content in gtsrb_files().items() if path.endswith(".ppm")]
    for made, file in zip(data.x, files, strict=True):
        picture = np.asarray(Image.open(io.BytesIO(file)))
        expected = naive_resize(picture[3:11, 2:9] if roi else picture, 8)
        assert np.abs(made - expected).max() < 1.01
    check_listing(gtsrb, folder=str(folder / "GTSRB"), size=8, roi=roi)


def test_changed_boxes_change_the_pixels(folder):
    before = gtsrb(folder=str(folder), size=8, roi=True).x
    write(folder, gtsrb_files("0;0;12;12"))
    assert not np.array_equal(gtsrb(folder=str(folder), size=8, roi=True).x, before)


@pytest.mark.parametrize("box", ["0;0;13;12", "5;5;5;9", "-1;0;3;3", "0;0;999999;999999"])
def test_boxes_outside_of_the_image_are_errors(folder, box):
    write(folder, gtsrb_files(box))
    assert len(gtsrb(folder=str(folder), size=8).x) == 48
    message = complaint(gtsrb, folder=str(folder), size=8, roi=True)
    assert "00000_00000.ppm is damaged or not an image (the box of its sign" in message


ROW = "00000_00000.ppm;12;12;0;0;9;9;"
BROKEN = {
    "no column": (f"Filename;ClassId\n{ROW}3\n", "not a table of GTSRB ('Roi.X1')"),
    "short row": (f"{TITLE}00000_00000.ppm;12\n", "not a table of GTSRB"),
    "no number": (f"{TITLE}{ROW}stop\n", "not a table of GTSRB"),
    "class": (f"{TITLE}{ROW}43\n", "class 43 is not in 0 .. 42"),
    "no rows": (TITLE, "has no images"),
    "empty": ("", "is empty"),
    "no text": (b"\xff\xfe\x00", "cannot be read"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_error_says_what_is_wrong_with_a_table(folder, case):
    content, expected = BROKEN[case]
    for table in (folder / "GTSRB" / module.IMAGES / "00007/GT-00007.csv", folder / module.TEST):
        whole = table.read_bytes()
        table.write_bytes(content if isinstance(content, bytes) else content.encode())
        message = complaint(gtsrb, folder=str(folder), size=8)
        assert message.startswith(str(table)) and expected in message
        assert "`fedjax-lab data get gtsrb`" in message
        table.write_bytes(whole)


def test_missing_files_are_errors(folder):
    (folder / "GTSRB/Final_Test/Images/00003.ppm").unlink()
    assert "00003.ppm cannot be read" in complaint(gtsrb, folder=str(folder), size=8)
    (folder / module.TEST).unlink()
    inner = folder / "GTSRB/Final_Test"
    assert module.TEST in complaint(gtsrb, folder=str(folder), size=8)
    assert "no Final_Training/Images or" in complaint(gtsrb, folder=str(inner))
