"""Pickles of strangers: plain data and NumPy arrays are read, nothing that they name is run.

A pickle is a program that may call whatever its reader finds for it. This reader finds stand-ins
for what NumPy's own pickles call (those of NumPy 1 and 2, Python 2 and 3, any protocol) and five
harmless types. Not even `numpy.dtype` itself is lent out: a forged one could make pointers of
bytes. It does not guard against files that are made to fill the memory.
"""

import pickle
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.errors import BadInput

BUILTINS = {kind.__name__: kind for kind in (bytearray, bytes, complex, frozenset, set)}
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
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error}): {remedy}") from error
    return loads(content, str(path), remedy)


def loads(content: bytes, name: str, remedy: str) -> Any:
    """As `load`, of what a file of this name holds."""
    try:
        return _Reader(BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged or forged pickle can raise any
        reason = str(error)[:200] or type(error).__name__
        reason = "".join(c if c.isprintable() else " " for c in reason)
        raise BadInput(f"{name} is not plain data, or damaged ({reason}): {remedy}") from error


class _Reader(pickle.Unpickler):
    """The stand-ins are bound methods, for a pickle can set attributes of plain functions."""

    ndarray = None  # only ever an argument, which `reconstruct` ignores

    def find_class(self, module: str, name: str) -> Any:
        if module in ("builtins", "__builtin__") and name in BUILTINS:
            return BUILTINS[name]
        known = STAND_INS.get((module.replace("numpy._core.", "numpy.core."), name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return getattr(self, known)

    def encode(self, text, codec):
        """Bytes in a pickle of Python 3 for Python 2."""
        if codec not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError("it asks for a codec")
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
        return np.dtype(self.code).newbyteorder(self.order)


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
