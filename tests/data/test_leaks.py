"""The same content is in one split only, or is reported; cached pixels are those of the files."""

import logging
import os

import numpy as np
import pytest
from inputs import complaint
from PIL import Image

from fedjax_lab.data import from_arrays, leaks
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats import text_rows
from fedjax_lab.data.partitions.dealing import Examples, deal
from fedjax_lab.data.sources import image_folders, image_table, text_files


def dataset(x, test, **fields):
    count = len(x)
    zeros = np.zeros(count, np.int32)
    made = Dataset(np.asarray(x, np.float32), zeros, zeros, np.asarray(test, bool), ("a",), ("d",))
    return made._replace(**fields)


def reported(caplog, made):
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        leaks.report(made)
    return [record.getMessage().partition(" test")[0] for record in caplog.records]


def test_equal_examples_of_both_splits_are_counted(caplog):
    rows = [[0, 1], [2, 3], [4, 5], [0, 1], [2, 4]]
    test = [0, 0, 0, 1, 1]
    assert reported(caplog, dataset(rows, test)) == ["1 of 2"]
    assert reported(caplog, dataset(rows[:3] + rows[4:], test[1:])) == []
    assert reported(caplog, dataset(rows, [0] * 5)) == []


def test_texts_are_compared_as_a_whole(caplog):
    """Words of different texts may have the same words before them."""
    words = [[0, 1], [1, 2], [0, 1], [1, 3], [0, 1], [1, 2]]
    made = dataset(words, [0, 0, 1, 1, 1, 1], origin=np.array([0, 0, 1, 1, 2, 2]))
    assert reported(caplog, made) == ["3 of 4"]  # examples that are no words
    made = made._replace(classes=text_rows.SPECIAL)
    assert reported(caplog, made) == ["2 of 4"]


def test_texts_that_are_in_both_files_are_reported(tmp_path, caplog):
    lines = [f"sentence {i}, {i % 2}" for i in range(8)]
    for name, part in (("train", lines), ("test", lines[:3] + ["new,1"])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *part]))
    made = text_files.text_files(path=str(tmp_path))
    assert caplog.records[0].getMessage().startswith("3 of 4 test")
    assert made.classes == ("0", "1")  # without the blank before them


def test_ids_that_predict_the_labels_by_themselves_are_named():
    rng = np.random.default_rng(0)
    y = np.arange(200) // 100
    ids = 7000 + np.arange(200)  # given in the order of the labels
    noisy = np.where(rng.random(200) < 0.05, 1 - y, y)
    x = np.stack([rng.permutation(200), ids, ids / 3, ids // 2, ids[::-1] ** 2], 1)
    assert leaks.ids_that_predict(x, y) == leaks.ids_that_predict(x, noisy) == [1, 4]
    assert leaks.ids_that_predict(x, np.float32(ids + 20 * rng.normal(size=200))) == [1, 4]
    assert leaks.ids_that_predict(x, rng.permutation(y)) == []
    assert leaks.ids_that_predict(x, rng.normal(size=200)) == []
    made = from_arrays(x, y)["name"]()
    assert "column 1 of x, column 4 of x, which predicts the label" in made.remarks[0]


def windows(users, length):
    """Positions and users of consecutive windows."""
    return np.arange(users * length), np.repeat(np.arange(users), length)


def test_validation_windows_do_not_overlap_with_training_windows():
    _, user = windows(4, 30)
    parts = [np.flatnonzero(user == 0)[::-1], np.flatnonzero(user > 0)]
    train, held_out = leaks.hold_out_ends(parts, 0.2, 5, user)
    for own, held in zip(train, held_out, strict=True):
        assert np.bincount(user[held]).max() == 6 and np.bincount(user[own]).max() == 30 - 6 - 5
        for one in np.unique(user[held]):
            assert min(held[user[held] == one]) - max(own[user[own] == one]) == 6


def test_users_with_few_windows_only_train():
    _, user = windows(1, 6)
    (train,), (held_out,) = leaks.hold_out_ends([np.arange(6)], 0.5, 5, user)
    assert len(train) == 6 and len(held_out) == 0


def test_divided_windows_cannot_be_held_out():
    places, user = windows(1, 60)
    error = complaint(leaks.hold_out_ends, [places[:30], places[30:]], 0.2, 5, user)
    assert "config.partition.validation" in error and "by_client" in error


@pytest.mark.parametrize(
    ("parts", "to"),
    [([[0, 1], [1]], "client 0 and to client 1"), ([[0, 2, 2], [1]], "client 0 twice")],
)
def test_a_partition_deals_an_example_once(parts, to):
    zeros = np.zeros(3, np.int32)
    examples = Examples(zeros[:, None], zeros, zeros, None, (), None)
    error = complaint(deal, lambda *_: parts, examples, 2, None, "own")
    assert error.startswith("partition own gives example") and to in error


def picture(path, level, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), (level,) * 3).save(path, compress_level=0, **options)


def mean(folder):
    return image_folders.image_folders(folder=str(folder), size=16).x.mean()


def test_cached_pixels_are_those_of_the_files(tmp_path, empty_cache):
    """Neither another folder with equal names and sizes, nor a rewritten file, is taken for it."""
    for folder, level in (("one", 10), ("two", 200)):
        for name in "ab":
            picture(tmp_path / folder / name / "0.png", level)
    assert (mean(tmp_path / "one"), mean(tmp_path / "two")) == (10, 200)
    before = os.stat(tmp_path / "one/a/0.png")
    picture(tmp_path / "one/a/0.png", 30)
    os.utime(tmp_path / "one/a/0.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert mean(tmp_path / "one") == 20
    assert len(list(empty_cache.glob("*.npz"))) == 3


def test_an_image_that_is_listed_twice_is_one_text(tmp_path, empty_cache):
    for number in range(3):
        picture(tmp_path / f"{number}.png", number)
    lines = ["image,label", "0.png,a", "1.png,b", "0.png,a", "2.png,b"]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    made = image_table.image_table(path=str(tmp_path / "table.csv"), size=16)
    assert made.origin.tolist() == [0, 1, 0, 2]


def test_a_photograph_is_turned_upright(tmp_path, empty_cache):
    tag = Image.Exif()
    tag[0x0112] = 6  # a quarter turn clockwise
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:8] = 255
    for name in "ab":
        (tmp_path / "p" / name).mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / "p" / name / "0.png", exif=tag)
    x = image_folders.image_folders(folder=str(tmp_path / "p"), size=16).x
    assert x[0, :, 8:].min() == 255 and x[0, :, :8].max() == 0
