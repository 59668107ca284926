"""Merges additional seeds into the folder of a run, in a way that is safe if killed at any moment.

The merged run is first written as a separate run into the subfolder MERGED, summary.json last. Once
that file exists, the merged files replace those of the folder. If a command is killed while doing
this, the next command completes the replacement.
"""

import os
import shutil
from pathlib import Path

from fedjax_lab.errors import MACHINE
from fedjax_lab.running import cloud, growth, metrics

MERGED = "merged"  # in the folder of a run
REPLACED = (  # the files and folders that are taken from MERGED, in this order
    "fingerprint.json",
    "stages",
    "kept",
    "checkpoints",
    "metrics.jsonl",
    "plots/learning_curve.png",
    "config.json",
    "summary.json",
)


def settle(folder: Path) -> None:
    """Completes or undoes an interrupted merge. Only the folder's owner may call it."""
    if (folder / MERGED / "summary.json").exists():
        replace(folder)
        return
    _remove(folder, MERGED)
    inner = folder / growth.ADDED
    if inner.exists():
        more = growth.seeds(inner)
        if more is None or set(more) <= set(growth.seeds(folder) or ()):  # not started, or merged
            _remove(folder, growth.ADDED)


def replace(folder: Path) -> None:
    """Replaces the folder's run with the merged run, and removes the runs that were merged."""
    (folder / "summary.json").unlink(missing_ok=True)
    for name in REPLACED:
        if (folder / MERGED / name).exists():
            _put(folder / MERGED / name, folder / name)
    cloud.publish(folder)
    _remove(folder, MERGED)
    _remove(folder, growth.ADDED)


def _remove(folder, name):
    """Removes a subfolder of a run, beginning with the files that mark its progress."""
    if not (folder / name).exists():
        return
    for file in ("summary.json", "config.json"):
        (folder / name / file).unlink(missing_ok=True)
    shutil.rmtree(folder / name)
    cloud.publish(folder)


def _put(new, old):
    """Copies a file or folder, replacing an older one."""
    if new.is_file():
        metrics.make_folder(old.parent)
        metrics.replace(old, new.read_bytes())
        return
    shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(new, old, copy_function=_link)


def _link(file, place):
    """Creates a hard link to a file, or a copy if the file system has no hard links."""
    try:
        os.link(file, place)
    except OSError as error:
        if error.errno in MACHINE:
            raise
        shutil.copy2(file, place)
