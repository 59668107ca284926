"""What clients keep on the host, beside the checkpoints of a run: `kept/ROUNDS/SEED-CLIENT` has the
records of one seed that a process kept, from that client on.

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

import numpy as np

from fedjax_lab import processes
from fedjax_lab.data import safe
from fedjax_lab.host_state import HostState


def save(folder: Path, stores: Sequence[HostState]) -> list[dict]:
    """Writes a new folder; returns what `check` and `load` need to know of it.

    Of several processes each writes the clients that it keeps. All must call.
    """
    new = folder.with_name(f"{folder.name}.tmp")
    processes.of_first(lambda: _make_empty(new))
    described = []
    for i, store in enumerate(stores):
        with open(new / _name(i, store.segment), "xb") as file:
            digest = store.save(file)
            file.flush()
            os.fsync(file.fileno())
        described.append({**store.layout, "files": _of_all(store.segment, digest)})
    processes.of_first(lambda: _rename(new, folder))
    return described


def check(folder: Path, described: list[dict]) -> None:
    """ValueError or OSError unless the files are those that were saved.

    Of several processes each checks some of them.
    """
    files = [(i, *of_file) for i, of_store in enumerate(described) for of_file in of_store["files"]]
    for i, begin, end, expected in files[processes.number() :: processes.count()]:
        with safe.opened(folder / _name(i, range(begin, end))) as file:
            digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]  # it reads
            if digest.hexdigest() != expected:
                raise ValueError("what the clients keep is not what was saved")


def load(folder: Path, described: list[dict], stores: Sequence[HostState]) -> None:
    """Reads what this process keeps. ValueError where it is of other clients or another method."""
    layouts = [{k: v for k, v in of_store.items() if k != "files"} for of_store in described]
    if layouts != [store.layout for store in stores]:
        raise ValueError("what the clients keep differs in number, shape or type")
    for i, (store, of_store) in enumerate(zip(stores, described, strict=True)):
        for begin, end, _ in of_store["files"]:
            with open(folder / _name(i, range(begin, end)), "rb") as file:
                store.load(file, range(begin, end))


def _name(seed, clients):
    return f"{seed}-{clients.start}"


def _make_empty(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _rename(new, folder):
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def _of_all(clients, digest):
    """Of the file of each process: the first client, the one after the last, and the digest."""
    bounds = processes.of_each(np.array([clients.start, clients.stop], np.int32))
    digests = processes.of_each(np.frombuffer(bytes.fromhex(digest), np.uint8))
    return [[*map(int, b), bytes(d).hex()] for b, d in zip(bounds, digests, strict=True)]


def remove_others(folder: Path, rounds: Sequence[int]) -> None:
    """Removes what belongs to other checkpoints than those after so many rounds."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.name not in map(str, rounds):
                shutil.rmtree(path, ignore_errors=True)
