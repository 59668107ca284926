"""Files in GGUF, the format of llama.cpp: metadata, and tensors that are dequantized when read."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.models.hub_files import Tensors

SUFFIX = ".gguf"
REMEDY = "it must be a GGUF file of a language model"
INTERLEAVED = ("llama",)  # architectures whose rotary kernel in ggml pairs neighboring rows
FACTORS = "rope_freqs.weight"  # by which the rotary frequencies are divided; not a weight


def metadata(file: Path) -> dict[str, Any]:
    """The fields of the file by name. Raises BadInput if it cannot be read."""
    with safe.reading(file, REMEDY, extra="llm"):
        return {name: _content(field) for name, field in _reader(file).fields.items()}


def _content(field):
    """The value of a field; None for a list, such as those of the tokenizer, which may be long."""
    return None if len(field.types) > 1 else field.contents()


def factors(file: Path) -> tuple[float, ...]:
    """The divisors of the rotary frequencies; empty if they are all 1."""
    with safe.reading(file, REMEDY, extra="llm"):
        divisors = [each for each in _reader(file).tensors if each.name == FACTORS]
        return tuple(_dequantized(divisors[0]).tolist()) if divisors else ()


def shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, outputs first."""
    with safe.reading(file, REMEDY, extra="llm"):
        return {each.name: _shape(each) for each in _reader(file).tensors}


def tensors(file: Path) -> Tensors:
    """The tensors of a language model, [outputs, inputs] in float32, with q and k as in PyTorch."""
    with safe.reading(file, REMEDY, extra="llm"):
        stored, fields = _reader(file).tensors, metadata(file)
        kind = fields["general.architecture"]
        heads = fields.get(f"{kind}.attention.head_count")
        rows = {"attn_q": heads, "attn_k": fields.get(f"{kind}.attention.head_count_kv", heads)}
        rows = rows if kind in INTERLEAVED else {}
        return Tensors(
            {each.name: _reading(file, each, rows) for each in stored if each.name != FACTORS}
        )


def _reading(file, stored, rows: Mapping[str, Any]) -> Callable[[], np.ndarray]:
    layer = stored.name.split(".")[-2] if "." in stored.name else ""
    heads = rows.get(layer) if len(stored.shape) == 2 else None

    def read():
        with safe.reading(file, REMEDY):
            tensor = _dequantized(stored)
            return tensor if heads is None else _as_halves(tensor, heads)

    return read


def _dequantized(stored):
    from gguf import dequantize

    values = dequantize(stored.data, stored.tensor_type)
    return np.asarray(values, np.float32).reshape(_shape(stored))


def _shape(stored):
    return tuple(reversed(stored.shape.tolist()))


def _as_halves(tensor, heads):
    """The rows of each head, which alternate between its two halves, half by half."""
    outputs, inputs = tensor.shape
    return tensor.reshape(heads, -1, 2, inputs).swapaxes(1, 2).reshape(outputs, inputs)


def _reader(file):
    """A reader of the file, which is opened once: reading a tokenizer's lists takes seconds."""
    safe.check_regular(file)
    state = file.stat()
    return _opened(file, state.st_size, state.st_mtime_ns)


@lru_cache(1)
def _opened(file, size, changed):
    from gguf import GGUFReader

    return GGUFReader(file)
