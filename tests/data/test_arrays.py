"""User-defined arrays in an .npz file."""

import json
import os

import broken
import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.data.sources.arrays import arrays
from fedjax_lab.data.sources.mapped import mapped


@pytest.fixture
def save(tmp_path):
    """Writes an .npz file of 10 gray images, with the given arrays changed; returns its path."""

    def write(**changed):
        rng = np.random.default_rng(0)
        content = {
            "x": rng.integers(0, 256, (10, 6, 5)).astype(np.uint8),
            "y": np.arange(10) % 3,
            **changed,
        }
        path = tmp_path / "mine.npz"
        np.savez(path, **{key: value for key, value in content.items() if value is not None})
        return str(path)

    return write


def test_a_file_with_only_x_and_y_gets_defaults(save):
    path = save()
    data = arrays(path=path)
    assert data.x.shape == (10, 6, 5, 1) and data.x.dtype == np.uint8
    assert np.array_equal(data.x[..., 0], np.load(path)["x"])
    assert data.y.tolist() == [0, 1, 2] * 3 + [0] and data.y.dtype == np.int32
    assert data.classes == ("0", "1", "2") and data.domains == ("0",)
    assert data.test.sum() == 2 and data.test.dtype == bool
    assert np.array_equal(arrays(path=path).test, data.test)
    assert data.client is None and data.users == ()


def test_every_user_has_test_examples_and_no_group_is_divided(save):
    y, client = np.arange(200) % 2, np.arange(200) // 5
    data = arrays(path=save(x=np.zeros((200, 3)), y=y, client=client))
    assert np.bincount(data.client[data.test]).tolist() == [1] * 40
    group = np.arange(200) * 7 % 31
    data = arrays(path=save(x=np.zeros((200, 3)), y=y, group=group.astype(str)))
    assert data.test.any() and not set(group[data.test]) & set(group[~data.test])


def test_blanks_around_names_do_not_count(save):
    data = arrays(path=save(client=np.array(["a", "a ", " b", "b", "b"] * 2)))
    assert data.users == ("a", "b") and data.client.tolist() == [0, 0, 1, 1, 1] * 2


def test_labels_of_0_and_1_may_be_real_numbers(save):
    data = arrays(path=save(y=np.arange(10) % 2 / 1.0))
    assert data.y.dtype == np.int32 and data.classes == ("0", "1")
    assert arrays(path=save(y=np.arange(10) / 2)).y.dtype == np.float32
    assert arrays(path=save(y=np.arange(10) - 2)).y.tolist() == [*range(-2, 8)]


FLAGS = np.arange(10) > 5
SPLITS = [
    FLAGS,
    FLAGS.astype(int),
    np.where(FLAGS, "test", "train"),
    np.where(FLAGS, b"test", b"train"),
]


@pytest.mark.parametrize("split", SPLITS, ids=["flags", "integers", "names", "bytes"])
def test_a_file_may_have_domains_a_split_clients_and_class_names(split, save):
    """Names are numbered in alphabetic order, and integers in their own order."""
    names, numbers = np.array(["sea", "air"] * 5), np.array([20, 7] * 5)
    classes = np.array([b"a", b"b", b"c", b"never"])
    data = arrays(path=save(split=split, domain=names, client=numbers, classes=classes))
    assert data.test.tolist() == [False] * 6 + [True] * 4
    assert data.domains == ("air", "sea") and data.domain.tolist() == [1, 0] * 5
    assert data.users == ("7", "20") and data.client.tolist() == [1, 0] * 5
    assert data.domain.dtype == data.client.dtype == np.int32
    assert data.classes == ("a", "b", "c", "never")


@pytest.mark.parametrize("shape", [(10, 4), (10, 4, 4, 3)])
@pytest.mark.parametrize("kind", ["f8", "i8", "f4", "?"])
def test_columns_and_real_numbers_become_float32(shape, kind, save):
    x = (np.arange(np.prod(shape)).reshape(shape) % 100).astype(kind)
    data = arrays(path=save(x=x))
    is_kept = kind == "?" or (kind == "i8" and len(shape) == 4)
    assert data.x.dtype == (kind if is_kept else np.float32) and np.array_equal(data.x, x)


def spoiled(value: float) -> np.ndarray:
    x = np.zeros((10, 4, 4))
    x[[6, 8], 1, 2] = value
    return x


def labeled(value: int) -> np.ndarray:
    y = np.arange(10) % 3
    y[4] = value
    return y


WRONG = {
    "no x": ({"x": None, "other": np.zeros(3)}, "no array 'x'; it holds: y, other"),
    "misspelled": ({"domains": np.arange(10)}, "unknown array 'domains'; did you mean 'domain'?"),
    "length of y": ({"y": np.arange(9)}, "y has shape [9], but x has 10"),
    "x text": ({"x": np.array([["a"]] * 10)}, "x must hold numbers"),
    "x objects": ({"x": np.array([{}] * 10)}, "x holds objects"),
    "x flat": ({"x": np.zeros(10)}, "x has shape [10]"),
    "x NaN": ({"x": spoiled(np.nan)}, "first in row 6"),
    "y text": ({"y": np.array([*"aabbaabbaa"])}, "y must hold numbers"),
    "y NaN": ({"y": np.full(10, np.nan)}, "y has NaN or infinite values, first in row 0"),
    "y too large": ({"y": labeled(3), "classes": np.array([*"abc"])}, "y is 3 in row 4, not in"),
    "classes number": ({"classes": np.array(3)}, "classes has shape []"),
    "domain float": ({"domain": np.zeros(10)}, "domain must hold integers or strings"),
    "client empty": ({"client": np.array(["a"] * 9 + [" "])}, "client is empty in row 9"),
    "split word": ({"split": np.array(["train"] * 9 + ["valid"])}, "split is valid in row 9"),
    "no test": ({"split": np.zeros(10, bool)}, "no test examples"),
    "no training": ({"split": np.array(["test"] * 10)}, "no training examples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_says_what_is_wrong_with_an_array(case, save):
    changed, expected = WRONG[case]
    path = save(**changed)
    broken.check(arrays, path, expected, path=path)


def test_a_missing_file_or_another_format_is_an_error(tmp_path):
    assert "--config.data.path" in complaint(arrays, path="")
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    np.save(tmp_path / "one.npy", np.zeros(3))
    no_file, no_archive = "is not a file", "is not an .npz file"
    files = {"none.npz": no_file, "": no_file, "text.npz": no_archive, "one.npy": no_archive}
    for name, said in files.items():
        assert said in complaint(arrays, path=str(tmp_path / name))


def save_files(folder, **members):
    folder.mkdir(exist_ok=True)
    for name, array in members.items():
        np.save(folder / f"{name}.npy", array)
    return folder


RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (20, 6, 5), dtype=np.uint8), RNG.integers(0, 3, 20)
SPLIT = np.arange(20) % 4 == 0
DOMAIN = np.array(["north", "south"])[np.arange(20) % 2]


def test_mapped_arrays_equal_the_same_arrays_in_an_npz_file(tmp_path):
    folder = save_files(tmp_path / "own", x=X, y=Y, domain=DOMAIN, test=SPLIT, client=Y + 7)
    (folder / "classes.json").write_text(json.dumps([*"abcd"]))
    more = {"domain": DOMAIN, "client": Y + 7, "split": SPLIT.astype(int), "classes": [*"abcd"]}
    np.savez(tmp_path / "own", x=X, y=Y, **more)
    save_files(tmp_path / "less", x=X, y=Y)
    np.savez(tmp_path / "less", x=X, y=Y)
    for name in ("own", "less"):
        data = mapped(path=str(tmp_path / name))
        assert isinstance(data.x, np.memmap) and data.x.dtype == np.uint8
        for a, b in zip(data, arrays(path=str(tmp_path / f"{name}.npz")), strict=True):
            np.testing.assert_array_equal(a, b)


DAMAGED_FILES = [  # (file, its array or its content, words of the error)
    ("x.npy", None, "has no x.npy"),
    ("x.npy", lambda c: c[:-100], "x.npy cannot be read"),
    ("x.npy", b"<html>", "x.npy cannot be read"),
    ("y.npy", np.array([{}] * 20, object), "y.npy cannot be read"),
    ("x.npy", X / 2, "has type float64, not one of uint8, int8, int16, int32, float32"),
    ("x.npy", X[:, 0, 0], "has shape [20]"),
    ("x.npy", np.asfortranarray(X), "is in Fortran order"),
    ("y.npy", Y[:7], "y has shape [7], but x has 20 examples"),
    ("domain.npy", Y / 2, "domain must hold integers or strings"),
    ("test.npy", Y, "test.npy: its entries must be False or True"),
    ("test.npy", np.ones(20, bool), "no training examples"),
    ("tset.npy", SPLIT, "unknown file 'tset.npy'; did you mean 'test.npy'?"),
    ("classes.json", "{}", "it is not a list of names"),
    ("classes.json", '["a"]', "not in 0 .. 0"),
]


@pytest.mark.parametrize("name, content, expected", DAMAGED_FILES, ids=range(len(DAMAGED_FILES)))
def test_invalid_files_are_a_one_line_error(name, content, expected, tmp_path):
    folder = save_files(tmp_path / "own", x=X, y=Y)
    if isinstance(content, np.ndarray):
        np.save(folder / name, content)
    else:
        broken.replace(folder / name, content)
    broken.check(mapped, folder, expected, path=str(folder))


def test_pipes_empty_paths_and_missing_folders_are_rejected(tmp_path):
    assert "data.path is empty" in complaint(mapped, path="")
    assert "is not a folder" in complaint(mapped, path=str(tmp_path / "nothing"))
    for name in ("client.npy", "x.npy"):
        folder = save_files(tmp_path / name, x=X, y=Y)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        assert f"{name} cannot be read (it is a pipe" in complaint(mapped, path=str(folder))
