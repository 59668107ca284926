"""What clients keep on the host, beside the checkpoints of a run: `kept/ROUNDS/` has a file of each
seed's records.

Orbax would copy arrays of host memory before it writes them, and these may be as large as the
memory. So they are written in pieces, while no round is played. A folder is there as a whole or not
at all, and before the checkpoint whose description names its digests.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from fedjax_lab.data import safe
from fedjax_lab.host_state import HostState


def save(folder: Path, stores: Sequence[HostState]) -> list[dict]:
    """Writes a new folder; returns what `check` and `load` need to know of it."""
    new = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    described = []
    for i, store in enumerate(stores):
        with open(new / str(i), "xb") as file:
            described.append({**store.layout, "sha256": store.save(file)})
            file.flush()
            os.fsync(file.fileno())
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    return described


def check(folder: Path, described: list[dict]) -> None:
    """ValueError or OSError unless the files are those that were saved."""
    for i, of_store in enumerate(described):
        with safe.opened(folder / str(i)) as file:
            digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]  # it reads
            if digest.hexdigest() != of_store["sha256"]:
                raise ValueError("what the clients keep is not what was saved")


def load(folder: Path, described: list[dict], stores: Sequence[HostState]) -> None:
    """Reads the files. ValueError where they are of other clients or of another method."""
    layouts = [{k: v for k, v in of_store.items() if k != "sha256"} for of_store in described]
    if layouts != [store.layout for store in stores]:
        raise ValueError("what the clients keep differs in number, shape or type")
    for i, store in enumerate(stores):
        with open(folder / str(i), "rb") as file:
            store.load(file)


def remove_others(folder: Path, rounds: Sequence[int]) -> None:
    """Removes what belongs to other checkpoints than those after so many rounds."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.name not in map(str, rounds):
                shutil.rmtree(path, ignore_errors=True)
