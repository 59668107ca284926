"""Tests reading arbitrary rows of examples in each form that a data set can have."""

import numpy as np
import pytest
from record_files import make, write

from fedjax_lab.data import stream
from fedjax_lab.data.records import records

COUNT = 23


@pytest.fixture(params=["memory", "mapped", "records", "strided"])
def x(request, tmp_path):
    """The examples of `make`, in each of these forms."""
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
    stream.fill(made, x, rows)
    np.testing.assert_array_equal(made, np.where(rows[:, None] < 0, 0, flat[rows]))


def test_fill_accepts_an_empty_list_of_rows(x):
    size = int(np.prod(x.shape[1:]))
    stream.fill(np.empty((0, size), x.dtype), x, np.zeros(0, int))


@pytest.mark.parametrize("row", [-2, COUNT])
def test_rows_out_of_range_are_errors(x, row):
    size = int(np.prod(x.shape[1:]))
    with pytest.raises(IndexError, match="are not among 23 examples"):
        stream.fill(np.empty((2, size), x.dtype), x, np.array([0, row]))
