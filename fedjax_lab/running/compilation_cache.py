"""Keeps compiled programs on disk, so that a second run of a config starts sooner.

This enables JAX's compilation cache with a limited size: the least recently used programs are
removed. Several processes may share the cache.
"""

import hashlib
import os
import platform
import warnings
from pathlib import Path

import filelock
import jax

from fedjax_lab.data.cache import cache_folder

MAX_BYTES = 2 << 30
MIN_COMPILE_SECONDS = 0.2  # programs that compile faster are not kept
LOCK_SECONDS = 5.0


def enable() -> None:
    """Enables the cache in the user's cache folder if it is writable and JAX has no other one."""
    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]  # jax adds its flags
        return
    folder = cache_folder() / "programs" / _processor()
    try:
        str(folder).encode()  # XLA only accepts paths in UTF-8
        folder.mkdir(parents=True, exist_ok=True)
        _repair(folder)
    except (OSError, UnicodeEncodeError, filelock.Timeout):
        return
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        # A program that cannot be read or written is compiled as without a cache.
        warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation")


def _processor() -> str:
    """A name for this type of processor, because machines of several types may share a home."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    digest = hashlib.sha256("\n".join(sorted(set(flags))).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:12]}"


def _repair(folder: Path) -> None:
    """Removes incomplete entries of killed processes. JAX writes a program, then its time."""
    with filelock.FileLock(folder / ".lockfile", timeout=LOCK_SECONDS):  # the lock of JAX
        names = {path.name for path in folder.iterdir()}
        for name in names:
            stem, _, ending = name.rpartition("-")
            partner = {"cache": f"{stem}-atime", "atime": f"{stem}-cache"}.get(ending)
            if partner is not None and partner not in names:
                (folder / name).unlink(missing_ok=True)
