"""Arrays whose examples are read on demand."""

import numpy as np
import pytest
from inputs import complaint
from record_files import make, write

from fedjax_lab.data import lazy, safe
from fedjax_lab.data.cache import checksum
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.data.normalize import scale_of
from fedjax_lab.data.sources.records import records


def counting(content):
    """A lazy array with this content, and the numbers of all examples that it has read."""
    read = []

    def rows(numbers):
        read.extend(numbers.tolist())
        return content[numbers]

    return LazyArray(rows, content.shape, content.dtype, "the digest"), read


CONTENT = np.random.default_rng(0).normal(size=(11, 2, 3)).astype(np.float32)
ROWS = {
    "a slice": slice(2, 9, 3),
    "backward": slice(None, None, -2),
    "one": 4,
    "integers": np.array([7, 0, 7, -2]),
    "a table": np.array([[1, 2], [10, 0]]),
    "flags": np.arange(11) % 4 == 0,
    "nothing": np.array([], int),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_rows_equal_numpys_and_no_other_rows_are_read(rows):
    x, read = counting(CONTENT)
    np.testing.assert_array_equal(x[rows], CONTENT[rows])
    assert x[rows].shape == CONTENT[rows].shape
    assert set(read) == set(np.arange(11)[rows].ravel().tolist())


def test_shape_type_and_checksum_need_no_reading():
    x, read = counting(CONTENT)
    assert (len(x), x.shape, x.ndim, x.dtype) == (11, (11, 2, 3), 3, np.float32)
    assert checksum({"x": x}) != checksum({"x": LazyArray(x.read, x.shape, x.dtype, "another")})
    assert not read


def test_a_reshaped_array_is_still_lazy():
    x, read = counting(CONTENT)
    flat = x.reshape(11, -1)
    assert flat.shape == (11, 6) and not read
    np.testing.assert_array_equal(flat[[3, 4]], CONTENT.reshape(11, 6)[[3, 4]])
    np.testing.assert_array_equal(flat.reshape(11, 3, 2)[5], CONTENT.reshape(11, 3, 2)[5])
    with pytest.raises(ValueError, match="cannot reshape"):
        x.reshape(-1)
    with pytest.raises(ValueError, match="reshape"):
        x.reshape(11, 4)


@pytest.mark.parametrize("rows", [11, -12, [0, 11]])
def test_rows_out_of_range_are_an_index_error(rows):
    x, read = counting(CONTENT)
    with pytest.raises(IndexError, match="not among 11"):
        x[rows]
    assert not read


def test_the_whole_array_is_read_in_pieces(monkeypatch):
    x, read = counting(CONTENT)
    monkeypatch.setattr(lazy, "PIECE", 2 * 24 + 5)  # two examples and a bit
    assert [rows.stop - rows.start for rows in lazy.pieces(x)] == [2, 2, 2, 2, 2, 1]
    np.testing.assert_array_equal(np.asarray(x), CONTENT)
    assert read == list(range(11)) and np.asarray(x, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.array(x, copy=False)
    monkeypatch.setattr(lazy, "PIECE", 1)  # less than one example
    np.testing.assert_array_equal(np.asarray(x), CONTENT)


def test_the_range_of_model_inputs_is_computed_in_pieces(monkeypatch):
    monkeypatch.setattr(lazy, "PIECE", 50)
    for x in (counting(CONTENT)[0], CONTENT):
        scale = scale_of(x, "none")
        assert (scale.lowest, scale.highest) == (CONTENT.min(), CONTENT.max()) == scale.limits
    pixels, read = counting(np.zeros((3, 4, 4, 1), np.uint8))
    scale = scale_of(pixels, "unit")
    assert (scale.lowest, scale.highest) == (0, 1) and not read
    for value in (np.nan, np.inf):
        content = CONTENT.copy()
        content[6, 1, 1] = value
        assert "NaN or infinite" in complaint(scale_of, counting(content)[0], "unit")


def test_an_array_too_large_for_memory_is_rejected_before_it_is_read(monkeypatch):
    monkeypatch.setattr(safe, "free_memory", lambda: 2**30)
    x, read = counting(CONTENT)
    x.shape = (2**24, 256)
    message = complaint(np.asarray, x)
    assert "16777216 examples of 256 float32 do not fit in memory" in message and not read
    assert "python -m fedjax_lab.data prepare" in message


COUNT = 23


@pytest.fixture(params=["memory", "mapped", "records", "strided"])
def x(request, tmp_path):
    data = make(COUNT)
    if request.param == "records":
        write(data, tmp_path / "toy")
        return records(path=str(tmp_path / "toy")).x
    if request.param == "mapped":
        np.save(tmp_path / "x.npy", data.x)
        return np.load(tmp_path / "x.npy", mmap_mode="r")
    return data.x if request.param == "memory" else np.repeat(data.x, 2, 0)[::2]


@pytest.mark.parametrize("padding", [0, 0.3, 1])
def test_fill_copies_the_rows_and_writes_zeros_for_padding(x, padding):
    rng = np.random.default_rng(0)
    rows = np.where(rng.random(40) < padding, -1, rng.integers(0, COUNT, 40))
    flat = make(COUNT).x.reshape(COUNT, -1)
    made = np.full((40, flat.shape[1]), 99, flat.dtype)
    lazy.fill(made, x, rows)
    np.testing.assert_array_equal(made, np.where(rows[:, None] < 0, 0, flat[rows]))


def test_fill_rejects_rows_out_of_range(x):
    size = int(np.prod(x.shape[1:]))
    for row in (-2, COUNT):
        with pytest.raises(IndexError, match="are not among 23 examples"):
            lazy.fill(np.empty((2, size), x.dtype), x, np.array([0, row]))
