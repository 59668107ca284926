"""Images, labels and files of image data sets, and checks of these data sets."""

import io
import pickle
import struct

import numpy as np
import pytest

from fedjax_lab.data.formats import images


def check_one_domain(data, name: str, training: int, total: int):
    """Checks types and sizes, and that the training examples come first."""
    assert (data.x.dtype, data.y.dtype, data.domain.dtype) == (np.uint8, np.int32, np.int32)
    assert data.x.flags.c_contiguous and len(data.x) == len(data.y) == total
    assert data.test.tolist() == [False] * training + [True] * (total - training)
    assert data.domain.tolist() == [0] * total and data.domains == (name,)


def check_listing(source, **settings):
    """Checks that the source can list its files without decoding, and that they match its data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "decode", None)
        listed = source.listing(**settings)
        assert listed.x.dtype == np.uint8
    for lazy, whole in zip(listed, source(**settings), strict=True):
        np.testing.assert_array_equal(np.asarray(lazy), whole)


class Python2Pickler(pickle._Pickler):
    """Pickles like Python 2, whose str (here str and bytes) has separate opcodes."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        raw = value.encode("latin1") if isinstance(value, str) else value
        short = len(raw) < 256
        head = b"U" + bytes([len(raw)]) if short else b"T" + struct.pack("<i", len(raw))
        self.write(head + raw)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def python2(value, protocol: int = 2) -> bytes:
    """Returns a pickle as written by Python 2 with an old version of NumPy."""
    file = io.BytesIO()
    Python2Pickler(file, protocol).dump(value)
    return file.getvalue().replace(b"numpy._core", b"numpy.core")


class Call:
    """An object whose pickle calls a function when it is loaded."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def planes(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [count, 32, 32, 3], and the same in CIFAR's order: plane, row, column."""
    images = np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    flat = np.zeros((count, 3072), np.uint8)
    for n in range(count):
        for row in range(32):
            for column in range(32):
                for channel in range(3):
                    place = channel * 1024 + row * 32 + column
                    flat[n, place] = images[n, row, column, channel]
    return images, flat


IMAGES, FLAT = planes(0, 7)


LABELS = [3, 9, 0, 0, 5, 1, 2]  # 1 in each training batch, 2 in the test batch
