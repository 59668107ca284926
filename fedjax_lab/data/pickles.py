"""Reads untrusted pickles: only plain data and NumPy arrays; nothing that a pickle names is run.

A pickle is a program that may call whatever functions its reader looks up for it. This reader looks
up only replacements for the functions that NumPy's own pickles call (those of NumPy 1 and 2, Python
2 and 3, any protocol), and five harmless types. Even `numpy.dtype` itself is not available, because
a forged dtype could turn bytes into pointers. Short pickles that would fill the memory or take
forever are refused. Therefore this reader is based on the pure-Python one of the standard library,
whose operations can be overridden.
"""

import pickle
import re
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedjax_lab.data import safe

BUILTINS = ("bytearray", "bytes", "complex", "frozenset", "set")
STAND_INS = {  # (module, name) in a pickle: the attribute of `_Reader` that replaces it
    ("_codecs", "encode"): "encode",
    ("numpy", "dtype"): "dtype",
    ("numpy", "ndarray"): "ndarray",
    ("numpy.core.multiarray", "_reconstruct"): "reconstruct",
    ("numpy.core.multiarray", "scalar"): "scalar",
    ("numpy.core.numeric", "_frombuffer"): "frombuffer",
}


def load(path: Path, remedy: str) -> Any:
    """The content of a pickle file: containers, numbers, str, bytes and arrays.

    Strings of Python 2 become bytes, and arrays of Python's str become NumPy's string arrays.
    Arrays may be of a subclass of np.ndarray. Raises BadInput if the file is damaged or refers to
    anything else.
    """
    with safe.reading(path, remedy):
        content = safe.content(path)
    return loads(content, str(path), remedy)


def loads(content: bytes, name: str, remedy: str) -> Any:
    """As `load`, for the content of a file of this name."""
    with safe.reading(name, remedy, "is damaged or not plain data"):
        made = _Reader(BytesIO(content), encoding="bytes").load()
        _check_size(made, len(content))
    return made


def _check_size(made: Any, most: int) -> None:
    """Raises an error if nested containers have more than `most` elements in total.

    Each element takes at least a byte of the file, unless its container is referenced repeatedly.
    """
    pending, count, size = [made], 1, 0
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            value = [*value, *value.values()]
        if isinstance(value, (list, tuple, set, frozenset)):
            count += len(value)
            if count > most:
                raise pickle.UnpicklingError("its containers repeat too often")
            pending.extend(value)
        elif isinstance(value, (str, bytes, bytearray)):
            size += len(value)
        elif isinstance(value, np.ndarray):
            size += value.nbytes
    safe.check_memory(size)


class _Reader(pickle._Unpickler):
    """An unpickler whose replacements are bound methods.

    A pickle can set attributes of plain functions, but not of bound methods.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    ndarray = None  # used only as an argument, which `reconstruct` ignores
    made = checked = 0  # bytes copied so far, and how many of them were checked against memory

    def find_class(self, module: str, name: str) -> Any:
        if module in ("builtins", "__builtin__") and name in BUILTINS:
            return getattr(self, name)
        stand_in = STAND_INS.get((module.replace("numpy._core.", "numpy.core."), name))
        if stand_in is None:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return getattr(self, stand_in)

    def count(self, size: int) -> None:
        """Raises an error if all copied bytes do not fit in memory."""
        self.made += size
        if self.made > self.checked + safe.SMALL:
            safe.check_memory(self.made)
            self.checked = self.made

    def load_build(self):
        """Counts the bytes of the stack that an array copies."""
        if isinstance(self.stack[-2], _Array):
            self.count(_room(self.stack[-1][4]))
        super().load_build()

    def load_bytearray8(self):
        """Python's own method allocates the declared size before it reads the bytes."""
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))

    def load_setitem(self):
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self):
        _check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self):
        _check_keys(self.stack[::2])
        super().load_dict()

    def load_additems(self):
        _check_keys(self.stack)
        super().load_additems()

    def load_frozenset(self):
        _check_keys(self.stack)
        super().load_frozenset()

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.ADDITEMS[0]] = load_additems
    dispatch[pickle.FROZENSET[0]] = load_frozenset

    def bytes(self, *source):
        return bytes(self.bytearray(*source))

    def bytearray(self, *source):
        """Accepts text or bytes only: a number would allocate as many zeros."""
        if source and not isinstance(source[0], (str, bytes, bytearray)):
            raise pickle.UnpicklingError("it makes bytes from something other than text or bytes")
        self.count(len(source[0]) if source else 0)
        return bytearray(*source)

    def complex(self, real, imaginary):
        return complex(real, imaginary)

    def set(self, elements=()):
        _check_keys(elements)
        return set(elements)

    def frozenset(self, elements=()):
        return frozenset(self.set(elements))

    def encode(self, text, codec):
        """Encodes the bytes in a pickle that Python 3 wrote for Python 2."""
        if codec not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError("it uses a codec other than latin1")
        self.count(len(text))
        return text.encode("latin1")

    def dtype(self, code, *_):
        return _Type(code)

    def reconstruct(self, *_):
        return _Array()

    def scalar(self, kind, data):
        return np.frombuffer(data, kind.checked(), 1)[0]

    def frombuffer(self, data, kind, shape, order, axes=None):
        array = _readable(np.frombuffer(data, kind.checked()))
        return array.reshape(shape, order=order) if axes is None else _turned(array, shape, axes)


def _check_keys(keys: Iterable) -> None:
    """Raises an error for nested tuples, because hashing them can take forever."""
    for key in keys:
        if isinstance(key, tuple) and any(isinstance(value, tuple) for value in key):
            raise pickle.UnpicklingError("it has a nested tuple as a key")


def _room(data: Any) -> int:
    """The size in bytes of an array filled with `data`: bytes, or texts padded to the longest."""
    if isinstance(data, list):
        return 4 * len(data) * max((len(x) for x in data if isinstance(x, str)), default=0)
    return len(data)


def _readable(array: np.ndarray) -> np.ndarray:
    """The same array. Raises an error if a string in it has an invalid character."""
    if array.dtype.kind == "U":
        array.tolist()
    return array


def _turned(array: np.ndarray, shape: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """An array whose axes are in another order in memory."""
    return array.reshape(shape).transpose(axes)


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

    def __new__(cls):
        return super().__new__(cls, 0, np.uint8)

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, data = state
        if type(data) is list and data and all(type(text) is str for text in data):
            texts = np.array(data)
            kind, data, fortran = _Type(texts.dtype.str[1:]), texts.tobytes(), False
        if not isinstance(data, bytes):
            kind.checked()  # raises an error for an array of objects
            raise pickle.UnpicklingError("it holds an array without its bytes")
        super().__setstate__((1, shape, kind.checked(), fortran, data))
        _readable(self)


def _text(value: str | bytes) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)
