"""How a run takes over the seeds that were trained beside it, so that a kill at any moment is safe.

The merged run is first written as a run of its own into the folder MERGED, whose summary.json comes
last. From then on its files count, and they replace those of the folder; a command that is killed
while it does this leaves the rest to the next one.
"""

import os
import shutil
from pathlib import Path

from fedjax_lab.errors import MACHINE
from fedjax_lab.running import cloud, growth, metrics

MERGED = "merged"  # in the folder of a run
REPLACED = (  # what is taken from there, in this order
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
    """Ends or undoes a merge that was cut short. For the folder's owner."""
    if (folder / MERGED / "summary.json").exists():
        replace(folder)
        return
    _remove(folder, MERGED)
    inner = folder / growth.ADDED
    if inner.exists():
        more = growth.seeds(inner)
        if more is None or set(more) <= set(growth.seeds(folder) or ()):  # not begun, or merged
            _remove(folder, growth.ADDED)


def replace(folder: Path) -> None:
    """Puts the merged run in the place of the folder's, and removes what it was made from."""
    cloud.take(folder)
    (folder / "summary.json").unlink(missing_ok=True)
    for name in REPLACED:
        if (folder / MERGED / name).exists():
            _put(folder / MERGED / name, folder / name)
    cloud.publish(folder)
    _remove(folder, MERGED)
    _remove(folder, growth.ADDED)
    cloud.release(folder)


def _remove(folder, name):
    """Removes a folder inside of a run's, first the files that say how far it is."""
    if not (folder / name).exists():
        cloud.forget(folder / name)
        return
    cloud.take(folder / name)  # what is only in the cloud is to be removed as well
    for file in ("summary.json", "config.json"):
        (folder / name / file).unlink(missing_ok=True)
    shutil.rmtree(folder / name)
    cloud.publish(folder)
    cloud.release(folder / name)


def _put(new, old):
    """A copy of a file or folder in the place of an older one."""
    if new.is_file():
        metrics.make_folder(old.parent)
        metrics.replace(old, new.read_bytes())
        return
    shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(new, old, copy_function=_link)


def _link(file, place):
    """The same file under another name; a copy where the file system has no links."""
    try:
        os.link(file, place)
    except OSError as error:
        if error.errno in MACHINE:
            raise
        shutil.copy2(file, place)
