"""Data sets: their arrays, sources, formats, partitions and downloads."""

from typing import Any


def __getattr__(name: str) -> Any:
    """The functions of `memory`, which is imported when they are needed."""
    if name not in ("from_arrays", "from_hub", "from_torch"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedjax_lab.data import memory

    return getattr(memory, name)
