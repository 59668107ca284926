"""Saves and restores a run's state with orbax, asynchronously and atomically; keeps the newest two.

A checkpoint holds the leaves of the state by number. The tree structure follows from the config,
whose copy in the workdir is compared before anything is restored. Each process writes and reads the
shards that its devices hold. A description is saved with the leaves, because the array files of
orbax have no checksums: the number of rounds, and the shape, type and digest of each leaf.
"""

import contextlib
import errno
import functools
import gc
import hashlib
import io
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_lab.data.cache import checksum
from fedjax_lab.engine import parallel, processes
from fedjax_lab.engine.host.host_state import HostState
from fedjax_lab.errors import BadInput, causes, warn
from fedjax_lab.running.storage import digest, host_files
from fedjax_lab.tree import is_key
from fedjax_lab.types import Array, PyTree

ROOM = 1 << 20  # upper bound for the bytes of a checkpoint in addition to its arrays
SMALL = 1 << 20  # bytes up to which an array is written by one device and read by all


class Checkpoints:
    """The checkpoints of one workdir, each named after the number of rounds played before it.

    All processes of a run create an object of this class and call its methods in the same order.
    """

    def __init__(self, folder: Path, read_only: bool = False):
        """read_only: whether to change nothing, so that another process may write to the folder."""
        self._folder, self._kept = folder, folder.with_name("kept")
        self._read_only = read_only
        if not read_only:
            folder.mkdir(exist_ok=True)
        if processes.call_in_first(self._has_files):
            self._manager  # noqa: B018 - all processes open it

    def _has_files(self):
        return self._folder.exists() and any(self._folder.iterdir())

    @functools.cached_property
    def _ocp(self):
        """Orbax; a new run imports it when it first saves, because that takes a while."""
        import orbax.checkpoint as ocp

        for name in ("absl", "asyncio"):  # errors that orbax's threads log are also raised here
            logging.getLogger(name).addFilter(_not_of_orbax)
        return ocp

    @functools.cached_property
    def _arrays(self):
        return _array_handler(self._ocp)

    @functools.cached_property
    def _json(self):
        return self._ocp.JsonCheckpointHandler()

    @functools.cached_property
    def _manager(self):
        options = self._ocp.CheckpointManagerOptions(
            max_to_keep=2,
            create=False,
            cleanup_tmp_directories=not self._read_only,  # left by killed processes
            read_only=self._read_only,
        )
        with _hushed():
            return self._ocp.CheckpointManager(
                self._folder.absolute(),
                options=options,
                item_handlers={"leaves": self._arrays, "digest": self._json},
            )

    def _steps(self):
        return sorted(self._manager.all_steps()) if self._has_files() else []

    def save(self, rounds: int, state: PyTree, stores: Sequence[HostState] = ()) -> None:
        """Saves a checkpoint; returns as soon as the caller may change or donate the state.

        Orbax has copied the state to the host by then, and writes it in the background. On a CPU it
        keeps views of the arrays instead; JAX does not reuse memory that is still viewed.

        Args:
          rounds: the number of rounds played.
          state: the state on the devices.
          stores: the clients' state in host memory, which is written before this returns.
        """
        if self._manager.latest_step() == rounds:
            return
        leaves = [numbers(a) for a in jax.tree.leaves(state)]
        size = sum(a.nbytes for a in leaves) + sum(store.nbytes for store in stores)
        processes.call_in_first(lambda: _check_room(self._folder, size))
        described = host_files.save(self._kept / str(rounds), stores) if stores else []
        args = self._ocp.args
        description = args.JsonSave(_description(rounds, leaves, described))
        arrays = args.PyTreeSave({str(i): a for i, a in enumerate(leaves)})
        self._manager.save(rounds, args=args.Composite(leaves=arrays, digest=description))
        if stores and processes.is_first():
            host_files.remove_others(self._kept, [rounds, *self._manager.all_steps()])

    def load(self, rounds: int, stores: Sequence[HostState]) -> None:
        """Loads the clients' state in host memory. Raises BadInput if it is another run's."""
        description = self._json.restore(self._folder.absolute() / str(rounds) / "digest")
        try:
            host_files.load(self._kept / str(rounds), description.get("kept", []), stores)
        except ValueError as error:
            raise self._mismatch(rounds, error) from error

    def _mismatch(self, rounds, reason):
        run = self._folder.parent
        return BadInput(f"checkpoint {rounds} of {run} belongs to another run: {reason}")

    def newest(self, like: Callable[[int], PyTree], only: int | None = None) -> tuple[int, PyTree]:
        """Reads the newest intact checkpoint; no file is changed.

        Prints a warning for each newer checkpoint that is damaged.

        Args:
          like: the number of rounds of a checkpoint, whose description is intact -> a state with
            its types, shapes and shardings. An axis of clients, which is padded with zeros to a
            multiple of the number of devices, may have another length than the saved one.
          only: the number of rounds of the only checkpoint to consider; None: consider all.

        Returns:
          The number of rounds and the state; 0 and `like(0)` if there is no checkpoint.

        Raises:
          BadInput: all checkpoints are damaged, or one belongs to another run.
        """
        damaged: dict[int, str] = {}
        for rounds in processes.call_in_first(self.numbers) if only is None else [only]:
            description, reason = self._attempt(self._described, rounds)
            if not reason:
                expected = like(rounds)
                leaves, treedef = jax.tree.flatten(expected)
                if not _fits(description["arrays"], leaves, _history(expected)):
                    raise self._mismatch(rounds, "its arrays differ in shape or type")
                leaves, reason = self._try_to_read(rounds, description["arrays"], leaves)
            if reason:
                damaged[rounds] = reason
                continue
            for number, reason in damaged.items() if processes.is_first() else ():
                warn(
                    f"checkpoint {number} in {self._folder} is damaged, so checkpoint {rounds} is"
                    f" used: {reason}"
                )
            return rounds, jax.tree.unflatten(treedef, leaves)
        for rounds, reason in damaged.items():
            raise BadInput(
                f"all checkpoints in {self._folder} are damaged; delete this folder to restart the"
                f" run from round 1; checkpoint {rounds}: {reason}"
            )
        return 0, like(0)

    def numbers(self) -> list[int]:
        """The numbers of rounds of the checkpoints, the newest first, without empty folders."""
        newest_first = reversed(self._steps())
        return [rounds for rounds in newest_first if any((self._folder / str(rounds)).iterdir())]

    def _try_to_read(self, rounds, saved, like):
        """The leaves of a checkpoint and "", or None and the reason why it cannot be read."""
        folder = self._folder.absolute() / str(rounds)
        arrays, reason = self._attempt(self._read_arrays, folder, like)
        if reason:
            return None, reason
        if [array["digest"] for array in saved] != digest.digests(arrays):
            return None, "its arrays do not match their checksums"
        return [_placed(a, old) for a, old in zip(arrays, like, strict=True)], ""

    def _attempt(self, read, *args):
        """The result of a function that reads files and "", or None and why it has failed."""
        value, reason = None, ""
        with _hushed():
            try:
                value = read(*args)
            except MemoryError:
                raise
            except Exception as error:  # orbax and tensorstore raise exceptions of many types
                if is_no_room(error):
                    raise
                reason = f"{' '.join(str(error).split())[:200]} ({type(error).__name__})"
            if reason:
                time.sleep(0.1)  # the threads that read its other arrays fail as well,
                gc.collect()  # and asyncio logs that when their tasks are deleted
        if processes.anywhere(bool(reason)):
            return None, reason or "another process cannot read it"
        return value, ""

    def has_stores(self, rounds: int) -> bool:
        """Whether an intact checkpoint has clients' state that was kept in host memory."""
        folder = self._folder.absolute() / str(rounds)
        return bool(self._json.restore(folder / "digest").get("kept"))

    def _described(self, rounds):
        """The description of a checkpoint, after checking it and the clients' state on the host."""
        description = self._json.restore(self._folder.absolute() / str(rounds) / "digest")
        if "arrays" not in description:
            return self._described_as_a_whole(rounds, description["sha256"])
        if description != _signed(rounds, description["arrays"], description["kept"]):
            raise ValueError("the description does not match its checksum")
        host_files.check(self._kept / str(rounds), description["kept"])
        return description

    def _described_as_a_whole(self, rounds, sha256):
        """The description of a checkpoint of version 0.1.0, with one checksum for all arrays."""
        read = self._arrays.restore(self._folder.absolute() / str(rounds) / "leaves")
        if sha256 != checksum({"rounds": np.array(rounds), **read}):
            raise ValueError("its arrays do not match their checksum")
        return _description(rounds, [read[str(i)] for i in range(len(read))], [])

    def _read_arrays(self, folder, like):
        """Reads the shards of this process's devices, without waiting for other processes."""
        like = list(map(numbers, like))
        args = {str(i): self._how_to_read(a) for i, a in enumerate(like)}
        args = self._ocp.args.PyTreeRestore(restore_args=args)
        read = self._arrays.restore(folder / "leaves", args=args)
        return [_resized(read[str(i)], a.shape) for i, a in enumerate(like)]

    def _how_to_read(self, like):
        if not isinstance(like, jax.Array):
            return self._ocp.RestoreArgs(restore_type=np.ndarray)
        return self._ocp.ArrayRestoreArgs(
            sharding=_divided(like),
            global_shape=like.shape,
            dtype=like.dtype,
            strict=False,  # pads with zeros, or cuts
        )

    def forget_after(self, rounds: int) -> None:
        """Removes the checkpoints after more than `rounds` rounds."""
        for later in processes.call_in_first(self._steps):
            if later > rounds:
                self._manager.delete(later)

    def wait(self) -> None:
        """Waits until all saved checkpoints are on disk."""
        if "_manager" in vars(self):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits until all saved checkpoints are on disk, and frees the resources of orbax."""
        if "_manager" in vars(self):
            self._manager.wait_until_finished()
            self._manager.close()


def numbers(leaf: Any) -> Array | np.ndarray:
    """A leaf in the form in which it is saved: typed random keys as their integers."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _history(state):
    """Whether each leaf is one of a `Progress.history`, which is longer in a run of more rounds."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return [any(getattr(key, "name", "") == "history" for key in path) for path, _ in leaves]


def _fits(saved, like, history):
    """Whether saved arrays have these types and shapes.

    The lengths of axes of clients, and of the versions in a history, may differ.
    """
    shapes = [jax.eval_shape(numbers, a) if isinstance(a, jax.Array) else a for a in like]
    return len(saved) == len(like) and all(map(_fits_one, saved, shapes, like, history))


def _fits_one(saved, shape, like, is_history):
    if saved["dtype"] != str(shape.dtype) or len(saved["shape"]) != len(shape.shape):
        return False
    lengths = zip(saved["shape"], shape.shape, strict=True)
    different = {i for i, (a, b) in enumerate(lengths) if a != b}
    return different <= {saved["clients"], _clients(like)} or (is_history and len(different) == 1)


def _divided(like):
    """The sharding with which to read an array; of a large replicated one, each device a part."""
    sharding = like.sharding
    if not isinstance(sharding, NamedSharding) or like.nbytes <= SMALL:
        return sharding
    axis = int(np.argmax(like.shape))
    if not sharding.is_fully_replicated or like.shape[axis] % sharding.mesh.size:
        return sharding
    return NamedSharding(sharding.mesh, P(*[None] * axis, sharding.mesh.axis_names))


def _resized(array, shape):
    """An array of this shape; one of NumPy is padded with zeros, or cut, at the end of its axes."""
    if array.shape == shape:
        return array
    left = array[tuple(map(slice, shape))]
    return np.pad(left, [(0, new - old) for new, old in zip(shape, left.shape, strict=True)])


def _placed(array, like):
    """An array that was read, with the type and the sharding of `like`."""
    if not isinstance(like, jax.Array):
        return array
    array = parallel.put(array, numbers(like).sharding)
    return (
        jax.random.wrap_key_data(array, impl=jax.random.key_impl(like)) if is_key(like) else array
    )


def _description(rounds, leaves, described):
    """The description that is saved with the leaves."""
    arrays = [
        {
            "shape": list(a.shape),
            "dtype": str(a.dtype),
            "clients": _clients(a),
            "host": not isinstance(a, jax.Array),
            "digest": of,
        }
        for a, of in zip(leaves, digest.digests(leaves), strict=True)
    ]
    return _signed(rounds, arrays, described)


def _signed(rounds, arrays, described):
    content = json.dumps([rounds, arrays, described], sort_keys=True)
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    return {"rounds": rounds, "arrays": arrays, "kept": described, "sha256": sha256}


def _clients(array):
    """The axis of clients that is sharded over the devices; None if there is none."""
    spec = getattr(getattr(array, "sharding", None), "spec", ())
    return next((i for i, names in enumerate(spec) if names in ("client", ("client",))), None)


def is_no_room(error):
    """Whether an error says that a device is out of memory, so that the files are not at fault."""
    return any(
        isinstance(each, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(each)
        for each in causes(error)
    )


def _array_handler(ocp):
    """The orbax handler that writes and reads the leaves.

    Devices share the writing of a replicated array only if it is large enough to be worth it.
    """
    types = ocp.type_handlers
    arrays = types.ArrayHandler(min_slice_bytes_for_replica_parallel=SMALL)
    each = types.create_type_handler_registry(
        (np.ndarray, types.NumpyHandler()), (jax.Array, arrays)
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=each)


def _not_of_orbax(record):
    of_futures = record.name == "asyncio" and "exception was never retrieved" in str(record.msg)
    return not of_futures and "orbax" not in Path(record.pathname).parts


def _check_room(folder, size):
    """Raises OSError if the disk is full, before orbax's threads print many lines about it."""
    disk = shutil.disk_usage(folder)
    if disk.total and disk.free < size + ROOM:  # some file systems report a size of 0
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextlib.contextmanager
def _hushed():
    """Suppresses the many lines that orbax and tensorstore print if a file is damaged."""
    logging.disable()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
