"""Pickles of strangers: plain data and NumPy arrays are read, nothing that they name is run.

A pickle is a program that may call whatever its reader finds for it. This reader finds stand-ins
for what NumPy's own pickles call (those of NumPy 1 and 2, Python 2 and 3, any protocol) and five
harmless types. Not even `numpy.dtype` itself is lent out: a forged one could make pointers of
bytes. A few bytes that would fill the memory or take for ever are refused; so the reader is the one
that Python has in Python, which can be told what it must not make.
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
STAND_INS = {  # what a pickle asks for, and the attribute of `_Reader` that it gets
    ("_codecs", "encode"): "encode",
    ("numpy", "dtype"): "dtype",
    ("numpy", "ndarray"): "ndarray",
    ("numpy.core.multiarray", "_reconstruct"): "reconstruct",
    ("numpy.core.multiarray", "scalar"): "scalar",
    ("numpy.core.numeric", "_frombuffer"): "frombuffer",
}


def load(path: Path, remedy: str) -> Any:
    """What a pickle file holds: containers, numbers, str, bytes and arrays of numbers or strings.

    Strings of Python 2 become bytes, arrays of Python's str those of NumPy's. Arrays may be of a
    subclass of np.ndarray. Raises BadInput for a file that is damaged or asks for anything else.
    """
    with safe.reading(path, remedy):
        content = safe.content(path)
    return loads(content, str(path), remedy)


def loads(content: bytes, name: str, remedy: str) -> Any:
    """As `load`, of what a file of this name holds."""
    with safe.reading(name, remedy, "is not plain data, or damaged"):
        made = _Reader(BytesIO(content), encoding="bytes").load()
        _check_size(made, len(content))
    return made


def _check_size(made: Any, most: int) -> None:
    """An error if containers that hold each other many times have more than `most` elements.

    Each element takes a byte of the file, or more, unless its container is there several times.
    """
    pending, count, size = [made], 1, 0
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            value = [*value, *value.values()]
        if isinstance(value, (list, tuple, set, frozenset)):
            count += len(value)
            if count > most:
                raise pickle.UnpicklingError("it repeats itself without end")
            pending.extend(value)
        elif isinstance(value, (str, bytes, bytearray)):
            size += len(value)
        elif isinstance(value, np.ndarray):
            size += value.nbytes
    safe.check_memory(size)


class _Reader(pickle._Unpickler):
    """The stand-ins are bound methods, for a pickle can set attributes of plain functions."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    ndarray = None  # only ever an argument, which `reconstruct` ignores
    made = checked = 0  # bytes that were copied, and how many of them memory was looked at for

    def find_class(self, module: str, name: str) -> Any:
        if module in ("builtins", "__builtin__") and name in BUILTINS:
            return getattr(self, name)
        stand_in = STAND_INS.get((module.replace("numpy._core.", "numpy.core."), name))
        if stand_in is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return getattr(self, stand_in)

    def count(self, size: int) -> None:
        """An error if all that is copied does not fit in memory."""
        self.made += size
        if self.made > self.checked + safe.SMALL:
            safe.check_memory(self.made)
            self.checked = self.made

    def load_build(self):
        """An array is filled with a copy of what is on the stack."""
        if isinstance(self.stack[-2], _Array):
            self.count(_room(self.stack[-1][4]))
        super().load_build()

    def load_bytearray8(self):
        """Python's own makes an array of the size that is claimed before it reads."""
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
        """Of text or bytes; of a number, as many zeros, it would be as large as it likes."""
        if source and not isinstance(source[0], (str, bytes, bytearray)):
            raise pickle.UnpicklingError("it asks for bytes of neither text nor bytes")
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
        """Bytes in a pickle of Python 3 for Python 2."""
        if codec not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError("it asks for a codec")
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
    """An error for tuples in tuples: each looks into all of them again when it is hashed."""
    for key in keys:
        if isinstance(key, tuple) and any(isinstance(value, tuple) for value in key):
            raise pickle.UnpicklingError("it has a tuple of tuples as a key")


def _room(data: Any) -> int:
    """The bytes of an array that is filled with this: bytes, or texts as long as the longest."""
    if isinstance(data, list):
        return 4 * len(data) * max((len(x) for x in data if isinstance(x, str)), default=0)
    return len(data)


def _readable(array: np.ndarray) -> np.ndarray:
    """The same array; an error if it is of text and some character does not exist."""
    if array.dtype.kind == "U":
        array.tolist()
    return array


def _turned(array: np.ndarray, shape: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """An array whose axes do not lie in memory in their own order."""
    return array.reshape(shape).transpose(axes)


class _Type:
    """A stand-in for numpy.dtype."""

    def __init__(self, code: str | bytes):
        self.code, self.order = _text(code), "="

    def __setstate__(self, state: tuple) -> None:
        self.order = _text(state[1])

    def checked(self) -> np.dtype:
        """The type itself, if it is one of numbers or strings."""
        if not re.fullmatch(r"[biufcSU]\d+", self.code):
            raise pickle.UnpicklingError(f"it holds an array of type {self.code}")
        order: Any = self.order  # NumPy refuses what is none
        return np.dtype(self.code).newbyteorder(order)


class _Array(np.ndarray):
    """An array that a pickle may fill, but only with bytes and a type that has been checked.

    For an array of objects the pickle has a list, row by row: one of str becomes bytes first.
    """

    def __new__(cls):
        return super().__new__(cls, 0, np.uint8)

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, data = state
        if type(data) is list and data and all(type(text) is str for text in data):
            texts = np.array(data)
            kind, data, fortran = _Type(texts.dtype.str[1:]), texts.tobytes(), False
        if not isinstance(data, bytes):
            kind.checked()  # of objects: this says so
            raise pickle.UnpicklingError("it holds an array without its bytes")
        super().__setstate__((1, shape, kind.checked(), fortran, data))
        _readable(self)


def _text(value: str | bytes) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)
