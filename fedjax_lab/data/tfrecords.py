"""TensorFlow's record files, read without TensorFlow.

Each record is its length (8 bytes, little endian), the length's checksum (4), its content, and the
content's checksum (4). The checksums are not verified: no package at hand has CRC-32C, and images
and examples notice most damage themselves. https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import safe

LENGTH, CHECKSUM = 8, 4  # bytes


class Record(NamedTuple):
    """Where a record's content is."""

    file: np.ndarray  # all bytes, mapped
    start: int
    stop: int

    def content(self) -> bytes:
        """The bytes of the record."""
        return self.file[self.start : self.stop].tobytes()


def records(path: Path) -> list[Record]:
    """All records of a file; ValueError where it ends within one."""
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
