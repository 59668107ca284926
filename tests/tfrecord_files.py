"""Writes TFRecord files."""

from pathlib import Path

import optional


def write_tfrecords(path: Path, records: list[bytes]) -> None:
    """Writes the records to a TFRecord file."""
    writer = optional.module("tensorboardX.record_writer").RecordWriter(str(path))
    for content in records:
        writer.write(content)
    writer.close()
