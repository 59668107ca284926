"""Reads untrusted pickles: only plain data and NumPy arrays; nothing that a pickle names is run.

A pickle is a program that may call whatever functions its reader looks up for it. This reader looks
up only replacements for the functions that NumPy's own pickles call (those of NumPy 1 and 2, Python
2 and 3, any protocol), and three harmless types. Even `numpy.dtype` itself is not available,
because a forged dtype could turn bytes into pointers.

A few bytes can also ask for any memory: as the number of an object in the memo, for which Python's
unpickler in C allocates a list, or by making a large value again and again.
"""

import pickle
import re
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedjax_lab.data import safe

LARGEST = 1 << 31  # bytes of a pickle
GROWTH = 4  # bytes that may be made of a byte of a pickle, besides those of its own values
STAND_INS = {  # (module, name) in a pickle: the attribute of `_Reader` that replaces it
    ("builtins", "complex"): "make_complex",
    ("builtins", "set"): "make_set",
    ("builtins", "frozenset"): "make_frozenset",
    ("builtins", "bytes"): "make_bytes",
    ("builtins", "bytearray"): "make_bytearray",
    ("_codecs", "encode"): "encode",
    ("numpy", "dtype"): "dtype",
    ("numpy", "ndarray"): "ndarray",
    ("numpy.core.multiarray", "_reconstruct"): "reconstruct",
    ("numpy.core.multiarray", "scalar"): "scalar",
    ("numpy.core.numeric", "_frombuffer"): "frombuffer",
}


def load(path: Path) -> Any:
    """The content of a pickle file: containers, numbers, str, bytes and arrays.

    Strings of Python 2 become bytes, and arrays of Python's str become NumPy's string arrays.
    Arrays may be of a subclass of np.ndarray. Raises BadInput if the file is damaged or refers to
    anything else.
    """
    with safe.reading(path):
        content = safe.content(path)
    return loads(content, str(path))


def loads(content: bytes, name: str) -> Any:
    """As `load`, for the content of a file of this name."""
    with safe.reading(name, problem="is damaged or not plain data"):
        if len(content) > LARGEST:
            raise pickle.UnpicklingError(f"it has more than {LARGEST} bytes")
        return _Reader(content).load()


class _Reader(pickle._Unpickler):  # in Python, whose memo is a dict
    """An unpickler whose replacements are its own methods."""

    read: Callable[[int], bytes]  # of the superclass, from the pickle
    append: Callable[[Any], None]  # the same, to its stack
    ndarray = None  # used only as an argument, which `reconstruct` ignores

    def __init__(self, content: bytes):
        super().__init__(BytesIO(content), encoding="bytes")
        self.left = safe.SMALL + GROWTH * len(content)  # bytes that may still be made

    def take(self, size: int) -> None:
        """Counts bytes that are made. Raises an error if they are far more than the pickle has."""
        self.left -= size
        if self.left < 0:
            raise pickle.UnpicklingError("it makes far more bytes than it has")

    def load_bytearray8(self) -> None:
        """Python's own one allocates the size that the file declares."""
        (size,) = struct.unpack("<Q", self.read(8))
        made = self.read(min(size, self.left))
        if len(made) < size:
            raise pickle.UnpicklingError(f"it declares {size} bytes, more than it has")
        self.append(bytearray(made))

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.BYTEARRAY8[0]: load_bytearray8,
    }

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy._core.", "numpy.core.").replace("__builtin__", "builtins")
        stand_in = STAND_INS.get((module, name))
        if stand_in is None:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return getattr(self, stand_in)

    def make_complex(self, real, imaginary):
        return complex(real, imaginary)

    def make_set(self, values=()):
        self.take(8 * len(values))
        return set(values)

    def make_frozenset(self, values=()):
        return frozenset(self.make_set(values))

    def make_bytes(self, content=b"", codec="latin1"):
        """Bytes of text or of bytes, but not of a number, which would be their length."""
        if not isinstance(content, (bytes, str)):
            raise pickle.UnpicklingError("it makes bytes of something else than text")
        return content if isinstance(content, bytes) else self.encode(content, codec)

    def make_bytearray(self, content=b"", codec="latin1"):
        made = self.make_bytes(content, codec)
        self.take(len(made))
        return bytearray(made)

    def encode(self, text, codec):
        """Encodes the bytes in a pickle that Python 3 wrote for Python 2."""
        if codec not in ("latin1", b"latin1", "latin-1"):
            raise pickle.UnpicklingError("it uses a codec other than latin1")
        self.take(len(text))
        return text.encode("latin1")

    def dtype(self, code, *_):
        return _Type(code)

    def reconstruct(self, *_):
        array = _Array()
        array.claim = self.take
        return array

    def scalar(self, kind, data):
        return np.frombuffer(data, kind.checked(), 1)[0]

    def frombuffer(self, data, kind, shape, order, axes=None):
        array = _readable(np.frombuffer(data, kind.checked()))
        if axes is None:
            return array.reshape(shape, order=order)
        return array.reshape(shape).transpose(axes)  # its axes are in another order in memory


def _readable(array: np.ndarray) -> np.ndarray:
    """The same array. Raises an error if a string in it has an invalid character."""
    if array.dtype.kind == "U":
        array.tolist()
    return array


class _Type:
    """A replacement for numpy.dtype."""

    def __init__(self, code: str | bytes):
        self.code, self.order = _text(code), "="

    def __setstate__(self, state: tuple) -> None:
        self.order = _text(state[1])

    def checked(self) -> np.dtype:
        """The dtype itself. Raises an error unless it is one of numbers or strings."""
        if not re.fullmatch(r"[biufcSU]\d+", self.code):
            raise pickle.UnpicklingError(f"it holds an array of type {self.code}")
        order: Any = self.order  # NumPy refuses an invalid order
        return np.dtype(self.code).newbyteorder(order)


class _Array(np.ndarray):
    """An array that a pickle may fill, but only with bytes and a checked dtype.

    An array of objects is pickled as a list; if all of them are str, they are converted to bytes.
    """

    claim: Callable[[int], None]  # `take` of the reader

    def __new__(cls):
        return super().__new__(cls, 0, np.uint8)

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, data = state
        if type(data) is list and data and all(type(text) is str for text in data):
            self.claim(4 * len(data) * max(map(len, data)))
            texts = np.array(data)
            kind, data, fortran = _Type(texts.dtype.str[1:]), texts.tobytes(), False
        if not isinstance(data, bytes):
            kind.checked()  # raises an error for an array of objects
            raise pickle.UnpicklingError("it holds an array without its bytes")
        self.claim(len(data))
        super().__setstate__((1, shape, kind.checked(), fortran, data))
        _readable(self)


def _text(value: str | bytes) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)
