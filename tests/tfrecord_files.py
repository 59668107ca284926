"""TensorFlow's record files, written as TensorFlow does."""

import struct
from pathlib import Path

CASTAGNOLI = 0x82F63B78  # CRC-32C's polynomial, its bits reversed


def checksum(content: bytes) -> int:
    """CRC-32C, rotated and shifted as the format has it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ CASTAGNOLI * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_tfrecords(path: Path, records: list[bytes]) -> None:
    """A file of these records."""
    with path.open("wb") as file:
        for content in records:
            length = struct.pack("<Q", len(content))
            file.write(length + struct.pack("<I", checksum(length)))
            file.write(content + struct.pack("<I", checksum(content)))
