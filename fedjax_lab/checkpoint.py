"""Saving and restoring the state of a run with orbax: asynchronous, atomic, the newest two kept.

A checkpoint is the state's leaves by number; the tree itself follows from the config, whose copy in
the workdir is compared before anything is restored.
"""

from pathlib import Path

import jax
import numpy as np

from fedjax_lab.errors import BadInput
from fedjax_lab.types import PyTree


class Checkpoints:
    """The checkpoints of one workdir, each under the number of rounds it comes after.

    For the first process of a run alone, which may wait for no other in here.
    """

    def __init__(self, folder: Path):
        import orbax.checkpoint as ocp  # not needed by those who save nothing

        self._ocp = ocp
        folder.mkdir(exist_ok=True)
        alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, create=False, multiprocessing_options=alone
        )
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def latest(self) -> int | None:
        """Rounds played at the newest complete checkpoint, None if there is none."""
        return self._manager.latest_step()

    def save(self, rounds: int, state: PyTree) -> None:
        """Returns when the state has been copied; it is written in the background."""
        if self._manager.latest_step() == rounds:
            return
        # Copied here because the next block of rounds reuses the state's memory.
        leaves = {str(i): np.array(a) for i, a in enumerate(jax.tree.leaves(state))}
        self._manager.save(rounds, args=self._ocp.args.StandardSave(leaves))

    def restore(self, rounds: int, like: PyTree) -> list[np.ndarray]:
        """The leaves of the saved state, which has the tree of `like`."""
        leaves = jax.tree.leaves(like)
        shapes = {str(i): np.empty(a.shape, a.dtype) for i, a in enumerate(leaves)}
        try:
            args = self._ocp.args.StandardRestore(shapes)
            saved = self._manager.restore(rounds, args=args)
        except (ValueError, KeyError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise BadInput(
                f"checkpoint {rounds} cannot be read; remove its folder to go on from an earlier"
                f" one: {reason}"
            ) from error
        if any(saved[str(i)].shape != a.shape for i, a in enumerate(leaves)):
            raise BadInput(f"checkpoint {rounds} is another run's: its arrays differ in shape")
        return [saved[str(i)] for i in range(len(leaves))]

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.wait_until_finished()
        self._manager.close()
