"""The private state of a hosted run in a checkpoint: beside orbax's arrays, in files of records.

Orbax would copy arrays of host memory before it writes them, and private state may be as large as
the memory. So this is written in pieces, while no round is played. Orbax makes it a part of its
checkpoint, which is there as a whole or not at all.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import orbax.checkpoint as ocp

from fedjax_lab.host_state import HostState

LAYOUT = "layout.json"


class Handler(ocp.CheckpointHandler):
    """Writes stores to the folder of a checkpoint. They are read by `load`."""

    def save(self, directory, args):
        """Writes a file for each store, and what is in them."""
        layouts = []
        for i, store in enumerate(args.stores):
            with open(directory / str(i), "xb", buffering=0) as file:
                layouts.append({**store.layout, "sha256": store.save(file)})
        (directory / LAYOUT).write_text(json.dumps(layouts))

    def restore(self, directory, args=None):
        """Nothing: `load` reads into stores that are there already."""


@ocp.args.register_with_handler(Handler, for_save=True, for_restore=True)  # orbax wants both
@dataclass
class Save(ocp.args.CheckpointArgs):
    """What is saved: a store for each seed."""

    stores: list[HostState]


def check(folder: Path) -> None:
    """ValueError unless all files of a checkpoint are those that were saved."""
    for i, layout in enumerate(json.loads((folder / LAYOUT).read_text())):
        with open(folder / str(i), "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != layout["sha256"]:
                raise ValueError("the clients' private state is not the one that was saved")


def load(folder: Path, stores: list[HostState]) -> None:
    """Reads the files of a checkpoint. ValueError where they are of other clients or methods."""
    layouts = json.loads((folder / LAYOUT).read_text())
    for layout in layouts:
        del layout["sha256"]
    if layouts != [store.layout for store in stores]:
        raise ValueError("the clients' private state is another run's")
    for i, store in enumerate(stores):
        with open(folder / str(i), "rb", buffering=0) as file:
            store.load(file)
