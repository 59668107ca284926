"""Saving and restoring the state of a run with orbax: asynchronous, atomic, the newest two kept.

A checkpoint is the state's leaves by number; the tree itself follows from the config, whose copy in
the workdir is compared before anything is restored. Beside them a digest is saved, of the number of
rounds and of all leaves, because the array files of orbax have no checksums.
"""

import contextlib
import errno
import gc
import io
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import parallel
from fedjax_lab.data.cache import checksum
from fedjax_lab.errors import BadInput, warn
from fedjax_lab.types import Array, PyTree

ROOM = 1 << 20  # bytes of a checkpoint besides its arrays, at most


class Checkpoints:
    """The checkpoints of one workdir, each under the number of rounds it comes after.

    For the first process of a run alone, which may wait for no other in here.
    """

    def __init__(self, folder: Path):
        import orbax.checkpoint as ocp  # not needed by those who save nothing

        for name in ("absl", "asyncio"):  # all errors that its threads log are raised here as well
            logging.getLogger(name).addFilter(_not_of_orbax)
        self._args, self._folder = ocp.args, folder
        folder.mkdir(exist_ok=True)
        alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2,
            create=False,
            cleanup_tmp_directories=True,  # what a process that was killed has left
            multiprocessing_options=alone,
        )
        with _hushed():
            self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self, rounds: int, state: PyTree) -> None:
        """Returns when the state has been copied; it is written in the background."""
        if self._manager.latest_step() == rounds:
            return
        # Copied here because the next block of rounds reuses the state's memory.
        leaves = {str(i): np.array(numbers(a)) for i, a in enumerate(jax.tree.leaves(state))}
        _check_room(self._folder, sum(a.nbytes for a in leaves.values()))
        digest = self._args.JsonSave({"sha256": _digest(rounds, leaves)})
        leaves = self._args.StandardSave(leaves)
        self._manager.save(rounds, args=self._args.Composite(leaves=leaves, digest=digest))

    def newest(self) -> tuple[int, list[np.ndarray]]:
        """The number of rounds and the leaves of the newest checkpoint that is whole.

        Returns (0, []) where there is no checkpoint. Tells of each newer one that is damaged.
        BadInput if all are. Nothing is changed.
        """
        damaged = {}
        for rounds in sorted(self._manager.all_steps(), reverse=True):
            if not any((self._folder / str(rounds)).iterdir()):
                continue  # an empty folder is no checkpoint
            leaves, reason = self._try_to_read(rounds)
            if reason:
                damaged[rounds] = reason
                continue
            for number, reason in damaged.items():
                warn(
                    f"checkpoint {number} in {self._folder} is damaged; {rounds} is used: {reason}"
                )
            return rounds, leaves
        for rounds, reason in damaged.items():
            raise BadInput(
                f"no checkpoint in {self._folder} is whole; without this folder the run starts"
                f" anew: {rounds}: {reason}"
            )
        return 0, []

    def _try_to_read(self, rounds):
        """The leaves of a checkpoint, and why they cannot be had if that is so."""
        with _hushed():
            try:
                return self._read(rounds), ""
            except MemoryError:
                raise
            except Exception as error:  # orbax and tensorstore raise any
                reason = f"{' '.join(str(error).split())[:200]} ({type(error).__name__})"
            time.sleep(0.1)  # the threads that read other arrays of the checkpoint fail as well,
            gc.collect()  # and asyncio tells of it when their tasks are deleted
            return [], reason

    def _read(self, rounds):
        leaves, digest = self._args.StandardRestore(), self._args.JsonRestore()
        args = self._args.Composite(leaves=leaves, digest=digest)
        saved = self._manager.restore(rounds, args=args)
        if saved["digest"]["sha256"] != _digest(rounds, saved["leaves"]):
            raise ValueError("the arrays are not those that were saved")
        return [saved["leaves"][str(i)] for i in range(len(saved["leaves"]))]

    def forget_after(self, rounds: int) -> None:
        """Removes later checkpoints, which would be in the way of those that a run saves."""
        for later in self._manager.all_steps():
            if later > rounds:
                self._manager.delete(later)

    def wait(self) -> None:
        """Returns when all that was saved is on the disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.wait_until_finished()
        self._manager.close()


def numbers(leaf: Any) -> Array | np.ndarray:
    """A leaf as it is saved: typed random keys, which have no files, as the integers in them."""
    if not _is_key(leaf):
        return leaf
    return jax.random.key_data(leaf.addressable_data(0) if leaf.is_fully_replicated else leaf)


def restored(saved: Any, like: Any) -> Array | np.ndarray:
    """A saved leaf as it was before, where and of the kind that `like` is."""
    if _is_key(like):
        saved = jax.random.wrap_key_data(saved, impl=jax.random.key_impl(like))
    sharding: Any = getattr(like, "sharding", None)
    return parallel.put(saved, sharding) if isinstance(like, jax.Array) else saved


def _is_key(leaf):
    return jnp.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)


def _not_of_orbax(record):
    of_futures = record.name == "asyncio" and "exception was never retrieved" in str(record.msg)
    return not of_futures and "orbax" not in Path(record.pathname).parts


def _check_room(folder, size):
    """OSError where the disk is full, before orbax's threads find that out, each in many lines."""
    disk = shutil.disk_usage(folder)
    if disk.total and disk.free < size + ROOM:  # a file system without sizes says 0
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextlib.contextmanager
def _hushed():
    """Without the many lines that orbax and tensorstore print where one file is damaged."""
    logging.disable()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _digest(rounds, leaves):
    return checksum({"rounds": np.array(rounds), **leaves})
