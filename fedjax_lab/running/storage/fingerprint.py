"""Digests of a run's data, with which a resumed run checks that its data have not changed."""

import jax
import numpy as np

from fedjax_lab.data.cache import checksum
from fedjax_lab.data.dataset import USERS
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.experiment import Experiment
from fedjax_lab.running.storage.checkpoint import numbers
from fedjax_lab.types import NEW_ROWS, Rows

ROWS = {  # the fields of a federation by the names that enter the digests
    "train": "train",
    "validation": "validation",
    "test": "test",
    "world": "global_test",
    "unseen": "unseen",
    **dict(zip(NEW_ROWS, NEW_ROWS, strict=True)),
}
EMBEDDINGS = "embeddings"
BASE = "frozen weights"
START = "start of seed"  # the state that the seed takes from config.run.start_from


def compute(experiment: Experiment) -> dict[str, str]:
    """A digest of each part of the data: examples, labels, users, partition and embeddings.

    With a clock, there are also digests of the clients' speeds and availability.
    If clients have their own numbers of `local`, there are also digests of these.
    If a part of the model is frozen, there is also a digest of its weights.
    If the run starts from another run, there is also a digest of the state that it takes from it.
    """
    simulation, parts = experiment.simulation, {}
    for seed in simulation.seeds:
        rows = {name: getattr(seed.federation, field) for name, field in ROWS.items()}
        rows = {name: _array(held) for name, held in rows.items() if held is not None}
        parts[f"partition of seed {seed.number}"] = rows
    for embeddings in {stage.embeddings for stage in simulation.stages if stage.embeddings}:
        parts[EMBEDDINGS] = embeddings()._asdict()
    if simulation.base is not None:
        leaves = jax.tree.leaves(simulation.base.load())
        parts[BASE] = {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)}
    for seed in simulation.seeds:
        traits, clients = seed.federation.traits, len(seed.federation.train)
        if (pace := traits.get("pace")) is not None:
            numbered = enumerate(jax.tree.leaves(pace))
            parts[f"speeds of seed {seed.number}"] = {str(i): a[:clients] for i, a in numbered}
        if (settings := traits.get("settings")) is not None:
            arrays = {name: a for name, a in settings._asdict().items() if a is not None}
            parts[f"local.per_client of seed {seed.number}"] = arrays
    parts |= {f"{START} {seed}": arrays for seed, arrays in _starts(simulation).items()}
    digests = experiment.dataset.digests()
    digests |= {name: checksum(arrays) for name, arrays in parts.items()}
    return digests


def _starts(simulation):
    """The arrays that each seed takes from another run; {} if the run starts from scratch."""
    leaves = {
        seed.number: jax.tree.leaves((seed.settings, seed.start)) for seed in simulation.seeds
    }
    return {
        seed: {str(i): np.asarray(numbers(leaf)) for i, leaf in enumerate(of_seed)}
        for seed, of_seed in leaves.items()
        if of_seed
    }


def _array(rows):
    """Row numbers as an array; those of clients as a lazy table, padded with -1."""
    if not isinstance(rows, Rows):
        return np.asarray(rows)
    return LazyArray(rows.on_host, rows.shape, np.int32, digest=None)


def check_same(saved: dict[str, str], today: dict[str, str], folder) -> None:
    """Raises BadInput if the data differ; the message names the parts that have changed.

    Args:
      saved: the digests in the folder of the run.
      today: the digests of this command's data.
      folder: the folder of the run, for the message.
    """
    if not any(name.startswith(START) for name in today):  # the run is only read
        saved = {name: digest for name, digest in saved.items() if not name.startswith(START)}
    if USERS not in saved:  # saved by an earlier version; the digests of the partition suffice
        today = {name: digest for name, digest in today.items() if name != USERS}
    differing = [name for name in {**saved, **today} if saved.get(name) != today.get(name)]
    if differing:
        raise BadInput(
            f"{folder} holds a run on other data; these have changed since it began:"
            f" {', '.join(differing)}; {_remedy(differing)}, or name another folder"
        )


def _remedy(differing):
    """What to do about data that differ."""
    if differing == [EMBEDDINGS]:
        return (
            "they differ by rounding if they are computed on another device or with another number"
            " of CPU cores; use the same device and number of cores as the run"
        )
    return "restore them"
