"""Saves and restores a run's state with orbax, asynchronously and atomically; keeps the newest two.

A checkpoint holds the leaves of the state by number. The tree structure follows from the config,
whose copy in the workdir is compared before anything is restored. Each process writes and reads the
shards that its devices hold. A description is saved with the leaves, because the array files of
orbax have no checksums: the number of rounds, and the shape, type and digest of each leaf.
"""

import contextlib
import errno
import gc
import hashlib
import io
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from fedjax_lab.engine import parallel, processes
from fedjax_lab.engine.host.host_state import HostState
from fedjax_lab.errors import BadInput, causes, warn
from fedjax_lab.running.storage import digest, host_files
from fedjax_lab.tree import is_key
from fedjax_lab.types import Array, PyTree

ROOM = 1 << 20  # upper bound for the bytes of a checkpoint in addition to its arrays
SMALL = 1 << 20  # bytes up to which an array is written by one device and read by all


class Saved(NamedTuple):
    """A leaf of the state, as read from a checkpoint."""

    array: Any  # of NumPy if it was saved as such; one axis may be padded with zeros at its end
    shape: tuple[int, ...]  # when it was saved
    clients: int | None  # the axis of clients that was sharded over the devices; None: no axis
    digest: str


class Checkpoints:
    """The checkpoints of one workdir, each named after the number of rounds played before it.

    All processes of a run create an object of this class and call its methods in the same order.
    """

    def __init__(self, folder: Path, read_only: bool = False):
        """read_only: whether to change nothing, so that another process may write to the folder."""
        import orbax.checkpoint as ocp  # not needed by runs that save nothing

        for name in ("absl", "asyncio"):  # errors that orbax's threads log are also raised here
            logging.getLogger(name).addFilter(_not_of_orbax)
        self._ocp, self._folder, self._kept = ocp, folder, folder.with_name("kept")
        self._arrays, self._json = _array_handler(ocp), ocp.JsonCheckpointHandler()
        if not read_only:
            folder.mkdir(exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2,
            create=False,
            cleanup_tmp_directories=not read_only,  # left by killed processes
            read_only=read_only,
        )
        with _hushed():
            self._manager = ocp.CheckpointManager(
                folder.absolute(),
                options=options,
                item_handlers={"leaves": self._arrays, "digest": self._json},
            )

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
        processes.of_first(lambda: _check_room(self._folder, size))
        described = host_files.save(self._kept / str(rounds), stores) if stores else []
        args = self._ocp.args
        description = args.JsonSave(_description(rounds, leaves, described))
        arrays = args.PyTreeSave({str(i): a for i, a in enumerate(leaves)})
        self._manager.save(rounds, args=args.Composite(leaves=arrays, digest=description))
        if stores and processes.is_first():
            host_files.remove_others(self._kept, [rounds, *self._manager.all_steps()])

    def load(self, rounds: int, stores: Sequence[HostState]) -> None:
        """Loads the clients' state in host memory. Raises ValueError if it is another run's."""
        description = self._json.restore(self._folder.absolute() / str(rounds) / "digest")
        host_files.load(self._kept / str(rounds), description.get("kept", []), stores)

    def newest(
        self, sharding: Sharding | None = None, only: int | None = None
    ) -> tuple[int, list[Saved]]:
        """Reads the newest intact checkpoint; no file is changed.

        Prints a warning for each newer checkpoint that is damaged.

        Args:
          sharding: how arrays are placed on the devices of the run; None: on the default device.
          only: the number of rounds of the only checkpoint to consider; None: consider all.

        Returns:
          The number of rounds and the leaves; (0, []) if there is no checkpoint.

        Raises:
          BadInput: all checkpoints are damaged.
        """
        damaged: dict[int, str] = {}
        for rounds in processes.of_first(self.numbers) if only is None else [only]:
            leaves, reason = self._try_to_read(rounds, sharding)
            if reason:
                damaged[rounds] = reason
                continue
            for number, reason in damaged.items() if processes.is_first() else ():
                warn(
                    f"checkpoint {number} in {self._folder} is damaged, so checkpoint {rounds} is"
                    f" used: {reason}"
                )
            return rounds, leaves
        for rounds, reason in damaged.items():
            raise BadInput(
                f"all checkpoints in {self._folder} are damaged; delete this folder to restart the"
                f" run from round 1; checkpoint {rounds}: {reason}"
            )
        return 0, []

    def numbers(self) -> list[int]:
        """The numbers of rounds of the checkpoints, the newest first, without empty folders."""
        steps = sorted(self._manager.all_steps(), reverse=True)
        return [rounds for rounds in steps if any((self._folder / str(rounds)).iterdir())]

    def _try_to_read(self, rounds, sharding):
        """The leaves of a checkpoint and "", or [] and the reason why it cannot be read."""
        leaves, reason = [], ""
        with _hushed():
            try:
                leaves = self._read(rounds, sharding)
            except MemoryError:
                raise
            except Exception as error:  # orbax and tensorstore raise exceptions of many types
                if _is_no_room(error):
                    raise
                reason = f"{' '.join(str(error).split())[:200]} ({type(error).__name__})"
            if reason:
                time.sleep(0.1)  # the threads that read its other arrays fail as well,
                gc.collect()  # and asyncio logs that when their tasks are deleted
        if processes.anywhere(bool(reason)):
            return [], reason or "another process cannot read it"
        if [leaf.digest for leaf in leaves] != digest.of([leaf.array for leaf in leaves]):
            return [], "the arrays do not match their checksums"
        return leaves, ""

    def _read(self, rounds, sharding):
        """Reads the shards of this process's devices, without waiting for other processes."""
        folder = self._folder.absolute() / str(rounds)
        description = self._json.restore(folder / "digest")
        if "arrays" not in description:
            raise ValueError("version 0.1.0 has saved it, which 0.2.0 is the last one to read")
        arrays = description["arrays"]
        if description != _signed(rounds, arrays, description["kept"]):
            raise ValueError("the description does not match its checksum")
        host_files.check(self._kept / str(rounds), description["kept"])
        read = self._read_arrays(folder, [_target(sharding, **array) for array in arrays])
        return [
            Saved(read[str(i)], tuple(array["shape"]), array["clients"], array["digest"])
            for i, array in enumerate(arrays)
        ]

    def _read_arrays(self, folder, targets=()):
        """Reads the arrays of a checkpoint, by number; `targets`: their shapes and shardings."""

        def how(target):
            if target is None:
                return self._ocp.RestoreArgs(restore_type=np.ndarray)
            return self._ocp.ArrayRestoreArgs(
                sharding=target.sharding,
                global_shape=target.shape,
                dtype=target.dtype,
                strict=False,  # pads with zeros
            )

        how_to = {str(i): how(target) for i, target in enumerate(targets)} or None
        args = self._ocp.args.PyTreeRestore(restore_args=how_to)
        return self._arrays.restore(folder / "leaves", args=args)

    def forget_after(self, rounds: int) -> None:
        """Removes the checkpoints after more than `rounds` rounds."""
        for later in processes.of_first(lambda: sorted(self._manager.all_steps())):
            if later > rounds:
                self._manager.delete(later)

    def wait(self) -> None:
        """Waits until all saved checkpoints are on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits until all saved checkpoints are on disk, and frees the resources of orbax."""
        self._manager.wait_until_finished()
        self._manager.close()


def numbers(leaf: Any) -> Array | np.ndarray:
    """A leaf in the form in which it is saved: typed random keys as their integers."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def placed(leaves: list[Saved], like: list) -> list:
    """Converts leaves that were read to the types, shapes and shardings of `like`.

    An axis of clients, which is padded with zeros to a multiple of the number of devices, gets the
    length that it has in `like`. Raises BadInput if any other shape or type differs, because the
    leaves then belong to another run.
    """
    shapes = [jax.eval_shape(numbers, a) if isinstance(a, jax.Array) else a for a in like]
    if len(leaves) != len(like) or not all(map(_fits, leaves, shapes, like)):
        raise BadInput("its arrays differ in shape or type")
    arrays = [_on_host(leaf.array, a) for leaf, a in zip(leaves, shapes, strict=True)]
    arrays = _on_devices(arrays, like)
    if any(leaf.shape > a.shape for leaf, a in zip(leaves, shapes, strict=True)):
        if digest.of(arrays) != [leaf.digest for leaf in leaves]:
            raise BadInput("its arrays have more clients")
    return [_as_key(a, old) if is_key(old) else a for a, old in zip(arrays, like, strict=True)]


def _fits(leaf, shape, like):
    """Whether a leaf has this type and shape, except for the length of an axis of clients."""
    if leaf.array.dtype != shape.dtype or len(leaf.shape) != len(shape.shape):
        return False
    lengths = zip(leaf.shape, shape.shape, strict=True)
    return {i for i, (a, b) in enumerate(lengths) if a != b} <= {leaf.clients, _clients(like)}


def _on_host(array, shape):
    """A NumPy array of this shape if the leaf was or will be one; else the array unchanged."""
    if isinstance(array, jax.Array):
        if not isinstance(shape, np.ndarray):
            return array
        array = processes.on_host(array)
    return array if array.shape == shape.shape else _resized(np, array, shape.shape)


def _on_devices(arrays, like):
    """The arrays with the shapes and shardings of `like`; those that are NumPy there stay so."""
    moving = {}
    for i, (array, old) in enumerate(zip(arrays, like, strict=True)):
        if isinstance(array, jax.Array):
            if not _is_placed_like(array, old):
                moving[i] = array
        elif isinstance(old, jax.Array):
            arrays[i] = parallel.put(array, old.sharding)

    def resize(moving):
        return {
            i: _resized(jnp, a, (*like[i].shape, *a.shape[like[i].ndim :]))  # keys have more axes
            for i, a in moving.items()
        }

    shardings = {i: like[i].sharding for i in moving}
    moved = jax.jit(resize, out_shardings=shardings)(moving) if moving else {}
    return [moved.get(i, a) for i, a in enumerate(arrays)]


def _is_placed_like(array, like):
    same = array.shape[: like.ndim] == like.shape
    return same and array.sharding.is_equivalent_to(like.sharding, array.ndim)


def _resized(xp, array, shape):
    """The array padded with zeros, or cut, at the end of each axis to get this shape."""
    left = array[tuple(slice(length) for length in shape)]
    return xp.pad(left, [(0, new - old) for new, old in zip(shape, left.shape, strict=True)])


def _as_key(bits, like):
    return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(like))


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
        for a, of in zip(leaves, digest.of(leaves), strict=True)
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


def _target(sharding, shape, dtype, clients, host, **_):
    """The shape, type and sharding with which to read an array; None for host memory.

    Large arrays are sharded along the axis of clients, or else along the longest axis, so that each
    device reads a part.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if host:
        return None
    if sharding is None:
        sharding = SingleDeviceSharding(jax.local_devices()[0])
    if isinstance(sharding, NamedSharding) and (size > SMALL or clients is not None):
        axis = int(np.argmax(shape)) if clients is None else clients
        mesh, shape = sharding.mesh, list(shape)
        shape[axis] += -shape[axis] % mesh.size
        sharding = NamedSharding(mesh, P(*[None] * axis, mesh.axis_names))
    return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding)


def _is_no_room(error):
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
