"""TensorFlow's record files."""

from pathlib import Path

from tensorboardX.record_writer import RecordWriter


def write_tfrecords(path: Path, records: list[bytes]) -> None:
    """A file of these records."""
    writer = RecordWriter(str(path))
    for content in records:
        writer.write(content)
    writer.close()
