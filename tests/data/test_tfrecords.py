"""Tests the reader of TensorFlow's record files."""

import os

import pytest
from tfrecord_files import write_tfrecords

from fedjax_lab.data import tfrecords

CONTENTS = [b"one", b"", b"three" * 100]


def test_records_are_read(tmp_path):
    write_tfrecords(tmp_path / "file", CONTENTS)
    assert [record.content() for record in tfrecords.records(tmp_path / "file")] == CONTENTS
    write_tfrecords(tmp_path / "empty", [])
    assert tfrecords.records(tmp_path / "empty") == []


@pytest.mark.parametrize("kept", [1, 11, 14, 18, 40, -1])
def test_files_that_end_within_a_record_are_errors(kept, tmp_path):
    file = tmp_path / "file"
    write_tfrecords(file, CONTENTS)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match="ends within record"):
        tfrecords.records(file)


def test_a_record_longer_than_its_file_is_an_error(tmp_path):
    file = tmp_path / "file"
    write_tfrecords(file, CONTENTS)
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    with pytest.raises(ValueError, match="ends within record 0"):
        tfrecords.records(file)


def test_a_pipe_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "file")
    with pytest.raises(OSError, match="a pipe"):
        tfrecords.records(tmp_path / "file")
