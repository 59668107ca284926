"""The index that an earlier run of Client2Vec has kept in its workdir."""

import zipfile
from pathlib import Path

import numpy as np

from fedjax_lab.errors import BadInput
from fedjax_lab.methods._client_index import Index


def kept(workdir: str) -> list[dict[str, np.ndarray]]:
    """The indices that a run has kept in its workdir, one for each lane of seeds."""
    files = sorted(Path(workdir).expanduser().glob("stages/train-*.npz"))
    names = {*Index._fields, "label_count"}
    try:
        indices = [dict(np.load(file)) for file in files]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"config.method.index_of={workdir} cannot be read: {error}") from error
    if not indices or any(names - facts.keys() for facts in indices):
        raise BadInput(f"config.method.index_of={workdir} holds no index; name a client2vec run")
    return indices


def load(workdir: str, label_count: np.ndarray) -> dict[str, np.ndarray]:
    """The one of them that is of clients with these labels [C, K]."""
    for facts in kept(workdir):
        counts = facts["label_count"]
        for seed in range(len(counts)) if counts.ndim == 3 else [()]:
            if np.array_equal(counts[seed], label_count):
                return {name: fact[seed] for name, fact in facts.items()}
    raise BadInput(
        f"config.method.index_of={workdir} holds an index of other clients; name a run with this"
        " partition and these seeds"
    )
