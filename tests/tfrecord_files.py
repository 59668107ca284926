"""Writes TFRecord files."""

from pathlib import Path

from tensorboardX.record_writer import RecordWriter


def write_tfrecords(path: Path, records: list[bytes]) -> None:
    """Writes the records to a TFRecord file."""
    writer = RecordWriter(str(path))
    for content in records:
        writer.write(content)
    writer.close()
