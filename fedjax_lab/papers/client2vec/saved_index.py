"""Loading of the index that an earlier run of Client2Vec has saved in its workdir."""

import zipfile
from pathlib import Path

import numpy as np

from fedjax_lab.errors import BadInput
from fedjax_lab.papers.client2vec.index import Index


def kept(workdir: str) -> list[dict[str, np.ndarray]]:
    """Returns the indices in the workdir of a run, one for each group of vectorized seeds."""
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
    """Returns the index in the workdir whose clients have exactly these label counts [C, K].

    Raises BadInput if there is none.
    """
    for facts in kept(workdir):
        counts = facts["label_count"]
        for seed in range(len(counts)) if counts.ndim == 3 else [()]:
            if np.array_equal(counts[seed], label_count):
                return {name: fact[seed] for name, fact in facts.items()}
    raise BadInput(
        f"config.method.index_of={workdir} holds an index of other clients; name a run with this"
        " partition and these seeds"
    )
