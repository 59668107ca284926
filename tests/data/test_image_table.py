"""Images that a table lists, with natural users."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from image_files import check_listing
from inputs import complaint
from PIL import Image

from fedjax_lab import experiment
from fedjax_lab.config import resolve
from fedjax_lab.data.image_table import image_table
from fedjax_lab.federation import parts_of

ISIC = {"label": "target", "client": "center", "split": "fold"}  # columns of Fed-ISIC2019
LINES = [  # image, target, center, fold, fold2
    ("ISIC_0", 10, 5, "train", "train_5"),
    ("ISIC_1", 2, 0, "train", "train_0"),
    ("ISIC_2", 2, 5, "test", "test_5"),
    ("ISIC_3", 2, 5, "train", "train_5"),
]


@pytest.fixture
def isic(tmp_path, empty_cache):
    """A table in FLamby's format, and the folder with its images: (table, folder)."""
    folder = tmp_path / "set" / "ISIC_2019_Training_Input_preprocessed"
    folder.mkdir(parents=True)
    for number, (name, *_) in enumerate(LINES):
        Image.new("RGB", (10, 8), (0, number, 0)).save(folder / f"{name}.png")
    write(tmp_path / "set" / "train_test_split", LINES)
    return tmp_path / "set" / "train_test_split", folder


def write(table, lines, header="image,target,center,fold,fold2", delimiter=","):
    lines = [header.replace(",", delimiter), *(delimiter.join(map(str, line)) for line in lines)]
    table.write_text("".join(f"{line}\n" for line in lines))


def load(isic, **settings):
    table, folder = isic
    return image_table(path=str(table), folder=str(folder), **{"size": 8, **ISIC, **settings})


def test_a_table_gives_labels_clients_and_the_split(isic):
    data = load(isic)
    assert (data.classes, data.users, data.domains) == (("2", "10"), ("0", "5"), ("image_table",))
    assert [Path(file).stem[-1] for file in data.files] == ["0", "3", "1", "2"]
    assert data.x.shape == (4, 8, 8, 3) and data.x[:, 0, 0, 1].tolist() == [0, 3, 1, 2]
    assert data.y.tolist() == [1, 0, 0, 0] and data.test.tolist() == [False] * 3 + [True]
    assert data.client.dtype == np.int32 and data.client.tolist() == [1, 1, 0, 1]
    again = load(isic)  # from the cache
    assert again.users == data.users and again.client.tolist() == data.client.tolist()
    table, folder = isic
    check_listing(image_table, path=str(table), folder=str(folder), **ISIC)


def test_centers_may_be_domains_and_images_gray(isic):
    data = load(isic, domain="center", client="", split="", color="gray")
    assert data.domains == ("0", "5") and data.domain.tolist() == [0, 1, 1, 1]
    assert data.client is None and data.users == () and not data.test.any()
    assert data.x.shape == (4, 8, 8, 1)


def test_the_cache_does_not_confuse_images_of_equal_name_and_size(tmp_path, empty_cache):
    """The images have another order if another column gives the domains."""
    for folder, red in (("a", 100), ("b", 200)):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (8, 8), (red, 0, 0)).save(tmp_path / folder / "0.webp", lossless=True)
    sizes = {(tmp_path / folder / "0.webp").stat().st_size for folder in "ab"}
    assert len(sizes) == 1
    write(tmp_path / "t.csv", [("a/0", 1, 1, 2), ("b/0", 1, 2, 1)], "image,label,one,two")
    for column, order in (("one", [100, 200]), ("two", [200, 100])):
        data = image_table(path=str(tmp_path / "t.csv"), domain=column, size=8)
        assert data.x[:, 0, 0, 0].tolist() == order


@pytest.mark.parametrize("delimiter", ["\t", ";"])
def test_other_delimiters_and_file_names_with_extensions_are_read(isic, delimiter):
    table, folder = isic
    lines = [(f'"{folder / name}.png"', *rest) for name, *rest in LINES]
    write(table, lines, delimiter=delimiter)
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes().replace(b"\n", b"\r\n"))
    assert load((table, "")).y.tolist() == [1, 0, 0, 0]


def test_an_error_says_what_is_wrong_with_a_table(isic, tmp_path):
    table, folder = isic
    error = partial(complaint, load, isic)
    assert "has no column 'label' (config.data.label)" in error(label="label")
    assert "has no column 'centre' (config.data.client); did you mean 'center'" in error(
        client="centre"
    )
    assert "'train_5' is not one of the splits train, training, test" in error(split="fold2")
    assert "must be from 8 to 512 pixels, got 1000" in error(size=1000)
    write(table, [*LINES, ("ISIC_9", 0, 0, "train", "")])
    assert f"there is no image {folder / 'ISIC_9'} (.jpg" in error()
    write(table, [*LINES, ("ISIC_9.jpg", 0, 0, "train", "")])
    assert error().startswith(f"{folder / 'ISIC_9.jpg'} cannot be read")
    write(table, [*LINES, ("ISIC_0", "", 0, "train", "")])
    assert error().startswith(f"{table}: line 6 has no 'target'")
    write(table, [*LINES, ("ISIC_0.png", 1, 0, "test", "")])
    assert error().endswith("for train and test, but an image has only one split")
    write(table, LINES, "image,target,target,center,fold")
    assert "has two columns 'target' (config.data.label)" in error()
    write(table, [("ISIC_0", 1, 0, "test", "")])
    assert "there are no training images" in error()
    write(table, [])
    assert "lists no images" in error()
    table.write_text("")
    assert "has no column 'image'" in error()
    assert "data.path is empty" in complaint(image_table, path="")
    message = complaint(image_table, path=str(tmp_path / "none.csv"))
    assert message.startswith(f"{tmp_path / 'none.csv'} cannot be read")


def test_centers_are_clients(isic):
    table, folder = isic
    settings = {"name": "image_table", "path": str(table), "folder": str(folder), **ISIC}
    config = resolve({"data": {**settings, "size": 8}, "partition": {"name": "by_client"}})
    data = experiment.load_data(config.data)
    (dealt,) = experiment.deal_dataset(config, data, [0])
    assert [sorted(part.tolist()) for part in parts_of(dealt.train)] == [[2], [0, 1]]
    assert [part.tolist() for part in parts_of(dealt.test)] == [[], [3]]
