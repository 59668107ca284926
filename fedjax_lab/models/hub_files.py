"""The hub's format of a model: a folder with config.json and safetensors files."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.errors import nearest, quoted

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


class Tensors(Mapping):
    """Tensors by name, each of which is read from its file whenever it is used."""

    def __init__(self, readers: Mapping[str, Callable[[], np.ndarray]]):
        self._readers = readers

    def __getitem__(self, name: str) -> np.ndarray:
        return self._readers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._readers  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def is_model(folder: Path) -> bool:
    """Whether the folder has a model in the hub's format."""
    return (folder / CONFIG).is_file()


@contextlib.contextmanager
def config(folder: Path, types: tuple[str, ...], remedy: str) -> Iterator[dict[str, Any]]:
    """The content of `folder`/config.json; errors inside the context become BadInput.

    Raises BadInput unless it can be read and describes a model of one of these types.
    """
    file = folder / CONFIG
    with safe.reading(file, remedy, "is not usable"):
        given = json.loads(safe.content(file))
        kind = given.get("model_type")
        if kind not in types:
            raise ValueError(f"its model_type is {quoted(kind)}; supported: {', '.join(types)}")
        yield given


def check(key: str, value: Any, kind: type[Any]) -> None:
    """Raises ValueError unless the value of this key is a number of this type above 0."""
    whole = kind is float and type(value) is int  # JSON writes 10000.0 also as 10000
    if not (type(value) is kind or whole) or not 0 < value < np.inf:
        raise ValueError(f"{key} is {quoted(value)}")


def check_word(key: str, value: Any, valid: Mapping | tuple[str, ...]) -> None:
    """Raises ValueError unless the value of this key is one of these words."""
    if str(value) not in valid:
        raise ValueError(f"{key} is {quoted(value)}; {nearest(str(value), valid)}")


def tensors(folder: Path, remedy: str) -> Tensors:
    """The tensors of model.safetensors, or of the files that its index lists.

    Raises BadInput if a file is missing or damaged, or if the package `safetensors` is.
    """
    if (folder / WHOLE).is_file() or not (folder / INDEX).is_file():
        return Tensors(_readers(folder / WHOLE, remedy))
    index = folder / INDEX
    with safe.reading(index, remedy, "is not usable"):
        places = json.loads(safe.content(index))["weight_map"]
        files = {name: Path(str(file)).name for name, file in places.items()}
    readers: dict[str, Callable[[], np.ndarray]] = {}
    for file in sorted(set(files.values())):
        readers |= _readers(folder / file, remedy)
    with safe.reading(index, remedy, "is not usable"):
        if lacking := sorted(files.keys() - readers.keys()):
            raise ValueError(f"its tensor {lacking[0]} is in none of its files")
    return Tensors(readers)


def _readers(file, remedy):
    """A function that reads each tensor of a safetensors file; bfloat16 stays bfloat16."""
    with safe.reading(file, remedy, extra="llm"):
        from safetensors import safe_open

        safe.check_regular(file)
        stored = safe_open(file, "numpy")

    def reader(name):
        def read():
            with safe.reading(file, remedy):
                return stored.get_tensor(name)

        return read

    return {name: reader(name) for name in stored.keys()}  # noqa: SIM118 (it is no dict)
