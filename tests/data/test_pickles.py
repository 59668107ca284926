"""Tests which pickles are read and which ones are rejected."""

import os
import pickle
import struct

import numpy as np
import pytest
from image_files import Call, python2
from inputs import complaint

from fedjax_lab.data import safe
from fedjax_lab.data.formats import pickles

GRID = np.arange(24).reshape(2, 3, 4)


PLAIN = {
    "list": [1, -2.5, True, None, 2**70, "text", b"bytes", b"", bytearray(b"x")],
    "nested": {"a": (1, [2, {3: {4}}]), 5: frozenset([6]), "c": 1j},
    "uint8": GRID.astype(np.uint8),
    "fortran": np.asfortranarray(GRID.astype(np.float32)),
    "turned": GRID.transpose(1, 2, 0),
    "big-endian": GRID.astype(">i4"),
    "bool": np.array([True, False]),
    "strings": np.array([b"cat", b"horse"]),
    "text": np.array([["cat", "h\u00f6rse"], ["", "x"]]),
    "empty": np.zeros((0, 3), np.uint8),
    "scalar": np.float32(1.5),
    "zero-dimensional": np.array(7),
}


def same(a, b) -> bool:
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    return a == b and type(a) is type(b)


def with_old_names(content: bytes, protocol: int) -> bytes:
    """Returns the pickle as NumPy 1 would have written it."""
    if protocol < 4:
        return content.replace(b"numpy._core", b"numpy.core")
    for new in (b"numpy._core.multiarray", b"numpy._core.numeric"):
        old = new.replace(b"_core", b"core")
        content = content.replace(bytes([len(new)]) + new, bytes([len(old)]) + old)
    return content[:2] + content[11:]  # without the frame, which has the old length


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("case", PLAIN)
def test_plain_pickles_are_read_as_pickle_reads_them(case, protocol, tmp_path):
    content = pickle.dumps(PLAIN[case], protocol)
    expected, file = pickle.loads(content), tmp_path / "a.pickle"
    for written in (content, with_old_names(content, protocol)):
        file.write_bytes(written)
        assert same(expected, pickles.load(file))
    assert b"numpy._core" not in written


@pytest.mark.parametrize("protocol", range(6))
def test_object_arrays_of_text_become_arrays_of_text(protocol):
    words = np.array([["cat", "h\u00f6rse"], ["", "x"]])
    for order in ("C", "F"):
        content = pickle.dumps(words.astype(object, order=order), protocol)
        assert same(words, pickles.loads(content, "a file"))


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_strings_of_python_2_are_read_as_bytes(protocol):
    pixels = np.arange(256, dtype=np.uint8).reshape(4, 64)
    value = {"data": pixels, "labels": [3, 1], "name": b"\xe9" * 300}
    content = python2(value, 2) if protocol == 2 else pickle.dumps(value, protocol)
    made = pickles.loads(content, "a file")
    key = b"data" if protocol == 2 else "data"
    assert same(pixels, made[key]) and type(made[key].tobytes()) is bytes
    assert list(made.values())[1:] == [[3, 1], b"\xe9" * 300]


def global_(module: str, name: str, after: bytes = b".") -> bytes:
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + after


def forged(kind: bytes, dtype_state: bytes, data: bytes) -> bytes:
    """Returns a pickled array of one element with an arbitrary type, type state and content."""
    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01(K\x01tcnumpy\ndtype\n(" + kind + b"tR" + dtype_state + b"b\x89" + data + b"tb."
    )


def binstring(raw: bytes) -> bytes:
    return b"U" + bytes([len(raw)]) + raw


STATE = b"(K\x03" + binstring(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"


REFUSED = {
    "os.system": (pickle.dumps(Call(os.system, "echo hi")), "system"),
    "eval": (pickle.dumps(Call(eval, "1 + 1")), "builtins.eval"),
    "numpy.save": (global_("numpy", "save"), "numpy.save"),
    "dotted name": (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "numpy.ndarray.tofile"),
    "codec": (global_("_codecs", "encode", b"U\x01aU\x04zlib\x86R."), "it uses a codec"),
    "own class": (pickle.dumps(PLAIN).replace(b"multiarray", b"multiarraz"), "multiarraz"),
    "objects": (pickle.dumps(np.array([{}, None])), "array of type O"),
    "text and objects": (pickle.dumps(np.array(["a", {}])), "array of type O"),
    "no characters": (forged(binstring(b"U1"), STATE, binstring(b"\xff" * 4)), "a file is damaged"),
    "pointers": (forged(binstring(b"O8"), STATE, binstring(b"\x01" * 8)), "array of type O8"),
    "list as type": (forged(b"]", STATE, binstring(b"\x01" * 8)), "array of type []"),
    "list for bytes": (forged(binstring(b"i8"), STATE, b"]"), "without its bytes"),
    "stand-in": (global_("numpy", "dtype", b"N}U\x0c__defaults__U\x01xs\x86b."), "is damaged"),
    "persistent id": (b"\x80\x02K\x01Q.", "a file is damaged"),
    "newline in a name": (b"\x80\x04\x8c\x02o\n\x8c\x03\x1b[2\x93.", "it refers to o . [2"),
    "empty": (b"", "a file is damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_pickles_of_other_objects_are_rejected(case):
    content, expected = REFUSED[case]
    message = complaint(safe.remedied("get another")(pickles.loads), content, "a file")
    assert message.startswith("a file") and message.endswith("get another")
    assert expected in message and len(message) < 300


def test_no_code_in_a_pickle_is_executed(tmp_path):
    target = tmp_path / "made"
    for call in (Call(open, str(target), "w"), Call(exec, f"open({str(target)!r}, 'w')")):
        for protocol in range(6):
            complaint(pickles.loads, pickle.dumps([call], protocol), "a file")
    assert not target.exists()
    for name in ("ndarray", "dtype"):  # stand-ins
        assert pickles.loads(global_("numpy", name), "") is not getattr(np, name)


def test_every_truncated_pickle_is_rejected():
    for protocol in (2, 3, 4, 5):
        content = pickle.dumps({b"data": np.arange(9), b"labels": [1, 2]}, protocol)
        for end in range(len(content)):
            complaint(pickles.loads, content[:end], "a file")


def test_too_large_pickles_are_rejected(monkeypatch):
    content = pickle.dumps(PLAIN)
    monkeypatch.setattr(pickles, "LARGEST", len(content) - 1)
    assert "it has more than" in complaint(pickles.loads, content, "a file")


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_of_a_number_of_zeros_are_rejected(kind):
    """Such a pickle of thirty bytes would fill the memory."""
    content = pickle.dumps(Call(kind, (10**12,)), 2)
    assert "it makes bytes of something else" in complaint(pickles.loads, content, "a")


def again(start: bytes, call: bytes) -> bytes:
    """A pickle that makes a text of a million letters, and then calls a function of it often."""
    text = b"X" + struct.pack("<I", 10**6) + b"a" * 10**6
    return b"\x80\x02" + start + b"(" + text + b"U\x06latin1tq\x01" + call * 100 + b"."


BOMBS = {
    "encode": (again(b"", b"c_codecs\nencode\nh\x01R"), "makes far more bytes"),
    "bytearray": (b"\x80\x05\x96" + struct.pack("<Q", 2**33) + b".", "declares 8589934592 bytes"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_pickles_that_would_fill_the_memory_are_rejected(case):
    content, expected = BOMBS[case]
    assert expected in complaint(pickles.loads, content, "a")


def test_a_large_number_in_the_memo_needs_no_memory():
    content = b"\x80\x02K\x01r" + struct.pack("<I", 2**31 - 1) + b"."
    assert pickles.loads(content, "a") == 1
