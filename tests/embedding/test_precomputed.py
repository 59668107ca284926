"""Tests embeddings that are read from a file."""

import io
import zipfile

import numpy as np
import pytest
from inputs import complaint
from small_dataset import SMALL, TEST

from fedjax_lab.models.embeddings.precomputed import precomputed

TABLE = np.random.default_rng(0).normal(size=(5, 4))
LABELS = np.random.default_rng(1).normal(size=(3, 4))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.float32])
def test_precomputed_embeddings_are_read_as_float32(dtype, tmp_path):
    table, file = TABLE.astype(dtype), tmp_path / "clip.npz"
    for rows in (table, table[~TEST]):  # of all examples, or of those for training
        np.savez(file, examples=rows, labels=LABELS.astype(dtype))
        made = precomputed(SMALL, file=str(file))
        expected = np.where(TEST[:, None], 0, table).astype(np.float32)
        assert np.array_equal(made.examples, expected) and made.examples.dtype == np.float32
        assert np.array_equal(made.labels, LABELS.astype(dtype).astype(np.float32))
        assert made.labels.dtype == np.float32


NAN = np.where(np.arange(5)[:, None] == 3, np.nan, TABLE)
BAD = [
    (TABLE, None, "has no array 'labels'"),
    (None, LABELS, "has no array 'examples'"),
    (TABLE[:4], LABELS, "4 rows, but the dataset has 5"),
    (TABLE, LABELS[:2], "labels has shape [2, 4], not [3, 4]"),
    (TABLE[..., None], LABELS, "examples has shape [5, 4, 1]"),
    (NAN, LABELS, "NaN or infinite values, first in row 3"),
    (TABLE, LABELS * 1e39, "labels has NaN or infinite values"),
    (TABLE.astype(str), LABELS, "examples is not an array"),
    (TABLE.astype(object), LABELS, "examples cannot be read"),
]


@pytest.mark.parametrize(("examples", "labels", "expected"), BAD, ids=[case[-1] for case in BAD])
def test_invalid_arrays_are_a_one_line_error(examples, labels, expected, tmp_path):
    file, arrays = tmp_path / "clip.npz", {"examples": examples, "labels": labels}
    np.savez(file, **{name: a for name, a in arrays.items() if a is not None})
    message = complaint(precomputed, SMALL, file=str(file))
    assert message.startswith(str(file)) and expected in message
    assert "config.embedding.file takes" in message and "one row for each class" in message


def test_missing_and_damaged_files_are_a_one_line_error(tmp_path):
    file = tmp_path / "clip.npz"
    assert f"{file} is missing" in complaint(precomputed, SMALL, file=str(file))
    for content in (b"<html>", b""):
        file.write_bytes(content)
        assert "is not an .npz file" in complaint(precomputed, SMALL, file=str(file))
    assert complaint(precomputed, SMALL, file="").startswith("config.embedding.file is empty")
    assert "is not an .npz file" in complaint(precomputed, SMALL, file=str(tmp_path))
    huge = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**40, 4)}
    np.lib.format.write_array_header_1_0(huge, header)
    for member in (b"no array", huge.getvalue()):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("examples.npy", member)
        assert str(file) in complaint(precomputed, SMALL, file=str(file))
