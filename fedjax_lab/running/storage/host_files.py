"""Saves and loads clients' state that is in host memory, in files beside the checkpoints of a run.

The file `kept/ROUNDS/SEED-CLIENT` has the state of the clients that one process holds for one seed,
beginning with that client. Orbax is not used here, because it would copy the arrays first, and they
may fill the memory. They are written in pieces instead, while no round is played. A folder appears
with all its files at once, before the checkpoint whose description has the files' digests.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.engine import processes
from fedjax_lab.engine.host.host_state import HostState


def save(folder: Path, stores: Sequence[HostState]) -> list[dict]:
    """Writes a new folder; returns its description, which `check` and `load` need.

    All processes must call this; each writes the clients that it holds.
    """
    new = folder.with_name(f"{folder.name}.tmp")
    processes.call_in_first(lambda: _make_empty(new))
    described = []
    for i, store in enumerate(stores):
        with open(new / _name(i, store.segment), "xb") as file:
            digest = store.save(file)
            file.flush()
            os.fsync(file.fileno())
        described.append({**store.layout, "files": _process_files(store.segment, digest)})
    processes.call_in_first(lambda: _rename(new, folder))
    return described


def check(folder: Path, described: list[dict]) -> None:
    """Raises ValueError or OSError unless the files match their digests.

    The files are divided among the processes of the run.
    """
    files = [(i, *of_file) for i, of_store in enumerate(described) for of_file in of_store["files"]]
    for i, begin, end, expected in files[processes.number() :: processes.count()]:
        with safe.opened(folder / _name(i, range(begin, end))) as file:
            digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]  # it reads
            if digest.hexdigest() != expected:
                raise ValueError("the clients' state does not match its checksum")


def load(folder: Path, described: list[dict], stores: Sequence[HostState]) -> None:
    """Reads the clients that this process holds into `stores`.

    Raises ValueError if the files have other clients or another method's state.
    """
    layouts = [{k: v for k, v in of_store.items() if k != "files"} for of_store in described]
    if layouts != [store.layout for store in stores]:
        raise ValueError("the clients' state differs in number, shape or type")
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


def _process_files(clients, digest):
    """For each process's file: the first client, one past the last client, and the digest."""
    bounds = processes.gather(np.array([clients.start, clients.stop], np.int32))
    digests = processes.gather(np.frombuffer(bytes.fromhex(digest), np.uint8))
    return [[*map(int, b), bytes(d).hex()] for b, d in zip(bounds, digests, strict=True)]


def remove_others(folder: Path, rounds: Sequence[int]) -> None:
    """Removes the files of all checkpoints except those with these numbers of rounds."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.name not in map(str, rounds):
                shutil.rmtree(path, ignore_errors=True)
