"""Digests of what a run trains on, by which a resumed run knows that its data are the same."""

import jax
import numpy as np

from fedjax_lab import parallel
from fedjax_lab.data.cache import checksum
from fedjax_lab.data.dataset import USERS
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import Experiment
from fedjax_lab.running.checkpoint import numbers
from fedjax_lab.types import NEW_ROWS, Rows

ROWS = {  # of a federation, by the names that are part of the digests
    "train": "train",
    "validation": "validation",
    "test": "test",
    "world": "global_test",
    "unseen": "unseen",
    **dict(zip(NEW_ROWS, NEW_ROWS, strict=True)),
}
START = "start of seed"  # what it takes from config.run.start_from
DRAWING = "devices that draw clients"  # not a digest but their number


def of(experiment: Experiment) -> dict[str, str]:
    """A digest of each part of the data: examples, labels, users, who holds which, embeddings.

    Of a run that starts from another one, also a digest of what it takes from that. Where each
    device draws from the clients that it holds, also how many devices do that.
    """
    simulation, parts = experiment.simulation, {}
    for seed, federation in zip(simulation.seeds, simulation.federations, strict=True):
        rows = {name: getattr(federation, field) for name, field in ROWS.items()}
        rows = {name: _array(held) for name, held in rows.items() if held is not None}
        parts[f"partition of seed {seed}"] = rows
    if any(stage.view and stage.view.embedded for stage in simulation.stages):
        assert simulation.embeddings is not None  # an embedded stage has them
        parts["embeddings"] = simulation.embeddings()._asdict()
    parts |= {f"{START} {seed}": arrays for seed, arrays in _starts(simulation).items()}
    digests = experiment.dataset.digests()
    digests |= {name: checksum(arrays) for name, arrays in parts.items()}
    if experiment.config.engine.sampling == "device":
        divided = simulation.strategy.by_client
        digests[DRAWING] = str(1 if divided is None else parallel.num_parts(divided))
    return digests


def _starts(simulation):
    """By seed the arrays that it starts from; none where all of them start anew."""
    seeds = simulation.seeds
    weights = simulation.joint.settings if simulation.joint else [()] * len(seeds)
    starts = zip(seeds, weights, simulation.start or [()] * len(seeds), strict=True)
    leaves = {seed: jax.tree.leaves(both) for seed, *both in starts}
    return {
        seed: {str(i): np.asarray(numbers(leaf)) for i, leaf in enumerate(of_seed)}
        for seed, of_seed in leaves.items()
        if of_seed
    }


def _array(rows):
    """Those of clients as a table padded with -1, of which only a piece is made at a time."""
    if not isinstance(rows, Rows):
        return np.asarray(rows)
    return LazyArray(rows.on_host, rows.shape, np.int32, digest=None)


def check_same(saved: dict[str, str], today: dict[str, str], folder) -> None:
    """BadInput names the parts of the data in which the folder's run differs from `today`."""
    before, now = (digests.get(DRAWING) for digests in (saved, today))
    if before != now:
        raise BadInput(
            f"{folder} holds a run that draws its clients on {before} devices"
            f" (config.engine.sampling=device), and {now} would do so now, with other cohorts; go"
            f" on with {before} devices, or name another folder"
        )
    if not any(name.startswith(START) for name in today):  # the run is only read
        saved = {name: digest for name, digest in saved.items() if not name.startswith(START)}
    if USERS not in saved:  # an earlier version's run, of whose partition there are digests too
        today = {name: digest for name, digest in today.items() if name != USERS}
    differing = [name for name in {**saved, **today} if saved.get(name) != today.get(name)]
    if differing:
        raise BadInput(
            f"{folder} holds a run on other data; these have changed since it began:"
            f" {', '.join(differing)}; restore them, or name another folder"
        )
