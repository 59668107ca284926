"""Reads TensorFlow's record files (TFRecord) without TensorFlow.

Each record has its length (8 bytes, little endian), the checksum of the length (4 bytes), its
content, and the checksum of the content (4 bytes). The checksums are not verified, because no
required package has CRC-32C, and decoding of images and examples detects most damage.
https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import safe

LENGTH, CHECKSUM = 8, 4  # bytes


class Record(NamedTuple):
    """The position of a record's content in a file."""

    file: np.ndarray  # all bytes, memory-mapped
    start: int
    stop: int

    def content(self) -> bytes:
        """The bytes of the record."""
        return self.file[self.start : self.stop].tobytes()


def records(path: Path) -> list[Record]:
    """All records of a file. Raises ValueError if the file ends within a record."""
    safe.check_regular(path)
    if path.stat().st_size == 0:
        return []
    file = np.memmap(path, np.uint8, "r")
    made: list[Record] = []
    at = 0
    while at < len(file):
        start = at + LENGTH + CHECKSUM
        stop = start + int.from_bytes(file[at : at + LENGTH].tobytes(), "little")
        at = stop + CHECKSUM
        if at > len(file):
            raise ValueError(f"{path.name} is damaged: it ends within record {len(made)}")
        made.append(Record(file, start, stop))
    return made
