"""User-defined arrays in an .npz file."""

import re
from pathlib import Path

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.data.arrays import arrays


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


def test_a_file_may_have_domains_a_split_and_class_names(save):
    data = arrays(
        path=save(
            domain=np.array(["sea", "air"] * 5),
            split=np.array(["train"] * 7 + ["test"] * 3),
            classes=np.array(["a", "b", "c", "never"]),
        )
    )
    assert data.domains == ("air", "sea") and data.domain.tolist() == [1, 0] * 5
    assert data.domain.dtype == np.int32
    assert data.test.tolist() == [False] * 7 + [True] * 3
    assert data.classes == ("a", "b", "c", "never")


@pytest.mark.parametrize("split", [np.arange(10) > 5, (np.arange(10) > 5).astype(int)])
def test_the_split_may_be_booleans_or_integers(split, save):
    data = arrays(path=save(split=split, domain=np.array([20, 7] * 5)))
    assert data.test.tolist() == [False] * 6 + [True] * 4
    assert data.domains == ("7", "20") and data.domain.tolist() == [1, 0] * 5


def test_a_file_may_state_the_client_of_each_example(save):
    named = arrays(path=save(client=np.array(["zoe", "ada"] * 5)))
    assert named.users == ("ada", "zoe") and named.client.tolist() == [1, 0] * 5
    numbered = arrays(path=save(client=np.array([20, 7] * 5)))
    assert numbered.users == ("7", "20") and numbered.client.dtype == np.int32
    assert arrays(path=save()).client is None and arrays(path=save()).users == ()


def test_names_may_be_byte_strings(save):
    split = np.array([b"train"] * 5 + [b"test"] * 5)
    data = arrays(path=save(split=split, classes=np.array([b"a", b"b", b"c"])))
    assert data.test.sum() == 5 and data.classes == ("a", "b", "c")


@pytest.mark.parametrize(("shape", "expected"), [((10, 4), (10, 4)), ((10, 4, 4, 3),) * 2])
@pytest.mark.parametrize("kind", ["f8", "i8", "f4", "?"])
def test_numbers_other_than_bytes_become_float32(shape, expected, kind, save):
    x = (np.arange(np.prod(shape)).reshape(shape) % 100).astype(kind)
    data = arrays(path=save(x=x))
    assert data.x.dtype == np.float32 and data.x.shape == expected
    assert np.array_equal(data.x, x)


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
    "no y": ({"y": None}, "no array 'y'; it holds: x"),
    "misspelled": (
        {"domains": np.arange(10)},
        "has an unknown array 'domains'; did you mean 'domain'?",
    ),
    "misspelled split": ({"splits": np.arange(10)}, "did you mean 'split'?"),
    "unread": (
        {"weight": np.arange(10)},
        "has an unknown array 'weight'",
    ),
    "length of y": ({"y": np.arange(9)}, "y has shape [9], but x has 10"),
    "y one-hot": ({"y": np.eye(10, dtype=int)}, "y has shape [10, 10]"),
    "length of domain": ({"domain": np.arange(3)}, "domain has shape [3]"),
    "length of client": ({"client": np.arange(3)}, "client has shape [3]"),
    "length of split": ({"split": np.arange(3)}, "split has shape [3]"),
    "x text": ({"x": np.array([["a"]] * 10)}, "x must hold numbers"),
    "x objects": ({"x": np.array([{}] * 10)}, "x holds objects"),
    "x complex": ({"x": np.zeros((10, 2), complex)}, "x must hold numbers"),
    "x flat": ({"x": np.zeros(10)}, "x has shape [10]"),
    "x empty": ({"x": np.zeros((0, 4))}, "x has shape [0, 4]"),
    "x NaN": ({"x": spoiled(np.nan)}, "first in row 6"),
    "x infinite": ({"x": spoiled(-np.inf)}, "first in row 6"),
    "x beyond float32": ({"x": spoiled(1e200)}, "first in row 6"),
    "y float": ({"y": np.zeros(10)}, "y must hold integers"),
    "y text": ({"y": np.array(["cat"] * 10)}, "y must hold integers"),
    "y negative": ({"y": labeled(-1)}, "y is -1 in row 4"),
    "y beyond classes": (
        {"y": labeled(3), "classes": np.array(["a", "b", "c"])},
        "y is 3 in row 4, not in 0 .. 2",
    ),
    "y absurd": ({"y": labeled(2**40)}, f"y is {2**40} in row 4"),
    "classes number": ({"classes": np.array(3)}, "classes has shape []"),
    "domain float": ({"domain": np.zeros(10)}, "domain must hold integers or strings"),
    "client float": ({"client": np.zeros(10)}, "client must hold integers or strings"),
    "split word": ({"split": np.array(["train"] * 9 + ["valid"])}, "split is valid in row 9"),
    "split number": ({"split": np.arange(10)}, "split is 2 in row 2"),
    "no test": ({"split": np.zeros(10, bool)}, "no test examples"),
    "no training": ({"split": np.array(["test"] * 10)}, "no training examples"),
    "too few": ({"x": np.zeros((4, 2)), "y": np.zeros(4, int)}, "no test examples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_says_what_is_wrong_with_an_array(case, save):
    changed, expected = WRONG[case]
    path = save(**changed)
    message = complaint(arrays, path=path)
    assert message.startswith(path) and expected in message


def test_a_missing_file_or_another_format_is_an_error(tmp_path, save):
    assert "--config.data.path" in complaint(arrays, path="")
    assert "is not a file" in complaint(arrays, path=str(tmp_path / "none.npz"))
    assert "is not a file" in complaint(arrays, path=str(tmp_path))
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    assert "is not an .npz file" in complaint(arrays, path=str(tmp_path / "text.npz"))
    np.save(tmp_path / "one.npy", np.zeros(3))
    assert "is not an .npz file" in complaint(arrays, path=str(tmp_path / "one.npy"))


def test_a_damaged_file_is_an_error(save):
    path = Path(save())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "is damaged" in complaint(arrays, path=str(path))
    start = re.search(rb"x\.npy", whole).end() + 150
    path.write_bytes(whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1 :])
    assert "x is damaged" in complaint(arrays, path=str(path))
