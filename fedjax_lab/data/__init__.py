"""Data sets: their arrays, sources, formats, partitions and downloads."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`from_arrays` and `from_torch`, which are imported when they are needed."""
    if name not in ("from_arrays", "from_torch"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedjax_lab.data import memory

    return getattr(memory, name)
