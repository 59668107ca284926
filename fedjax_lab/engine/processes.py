"""Runs with several processes on one or more hosts, and how these agree on decisions.

All processes run the same program on one mesh of all their devices. If a process decides something
from its own clock, signals or files, all processes must agree on the decision before the next
program starts. Otherwise they would run different programs and wait for each other forever.
"""

import os
import pickle
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_lab.errors import BadInput, causes
from fedjax_lab.types import PyTree

T = TypeVar("T")
PIECE = 1 << 28  # bytes that are sent at a time
GRACE_SECONDS = 2.0
HEARTBEAT_SECONDS = 20  # a process without a heartbeat for this time counts as ended; heartbeats
# come from a thread of JAX's runtime that needs neither the interpreter nor a device


def connect(place: str) -> None:
    """Connects to the other processes of the run. Must be called before jax starts.

    place: I/N@HOST:PORT, which is this process's number, the number of processes and the address of
    process 0; or "auto" if jax can determine these itself (Slurm, TPU pods, MPI, Kubernetes).

    After this call only the first process prints. Raises BadInput if the processes cannot connect.
    """
    try:
        jax.distributed.initialize(**parse(place), heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
    except (ValueError, RuntimeError) as error:
        raise BadInput(f"--distributed={place}: {error}") from error
    sys.excepthook = partial(_leave_with, sys.excepthook)
    if not is_first():
        sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave_with(tell, kind, error, trace):
    """Reports an exception and ends the process.

    If the end of another process caused the exception, that is reported instead.
    """
    if _is_runtime_error(error):
        time.sleep(HEARTBEAT_SECONDS + 10)  # by then the runtime has reported that and ended this
    tell(kind, error, trace)
    leave(1)


def _is_runtime_error(error):
    return any(isinstance(each, jax.errors.JaxRuntimeError) for each in causes(error))


def leave(code: int) -> NoReturn:
    """Ends this process; after a failure without waiting for others, which might wait for it."""
    if code and not _alone():
        sys.stdout.flush()
        sys.stderr.flush()
        let_others_end()
        os._exit(code)
    sys.exit(code)


def let_others_end() -> None:
    """Waits, in the first process only, until the others have printed their messages.

    The end of the first process ends all others at once.
    """
    if is_first():
        time.sleep(GRACE_SECONDS)


def parse(place: str) -> dict:
    """The arguments of jax.distributed.initialize for the value of --distributed."""
    if place == "auto":
        return {}
    match = re.fullmatch(r"(\d+)/(\d+)@(.+:\d+)", place)
    if match is None or int(match[1]) >= int(match[2]):
        raise BadInput(
            f"--distributed={place} is neither auto nor I/N@HOST:PORT; for example"
            " --distributed=0/2@127.0.0.1:7000"
        )
    return {
        "process_id": int(match[1]),
        "num_processes": int(match[2]),
        "coordinator_address": match[3],
        "cluster_detection_method": "deactivate",
    }


def is_first() -> bool:
    """Whether this is the first process, which writes files and prints."""
    return number() == 0


def number() -> int:
    """The number of this process, from 0."""
    return 0 if _alone() else jax.process_index()


def count() -> int:
    """The number of processes of the run."""
    return 1 if _alone() else jax.process_count()


def call_in_first(make: Callable[[], T]) -> T:
    """Calls `make` in the first process only, and returns its result in all processes.

    A BadInput from `make` is raised in all processes. All processes must call this function, in the
    same order. The result must be picklable.
    """
    if _alone():
        return make()
    data = np.zeros(0, np.uint8)
    if is_first():
        try:
            value: Any = make()
        except BadInput as error:
            value = error
        data = np.frombuffer(pickle.dumps(value), np.uint8)
    size = np.array(divmod(len(data), PIECE), np.int32)
    pieces, rest = multihost_utils.broadcast_one_to_all(size).tolist()
    data = data if is_first() else np.zeros(pieces * PIECE + rest, np.uint8)
    starts = range(0, len(data), PIECE)
    parts = [multihost_utils.broadcast_one_to_all(data[i : i + PIECE]) for i in starts]
    value = pickle.loads(b"".join(map(bytes, parts)))
    if isinstance(value, BadInput):
        raise value
    return value


def on_host(a: PyTree) -> PyTree:
    """NumPy copies of arrays that may be divided among processes. All processes must call this."""
    return jax.device_get(a) if _alone() else multihost_utils.process_allgather(a, tiled=True)


def gather(a: np.ndarray) -> np.ndarray:
    """The arrays of all processes, stacked: [processes, ...]. All processes must call this.

    The arrays must have the same shape and type.
    """
    return a[None] if _alone() else multihost_utils.process_allgather(a)


def least(number: int) -> int:
    """The minimum of all processes' numbers of bytes. All must call this in the same order."""
    if _alone():
        return number
    return int(gather(np.array(number >> 20, np.int32)).min()) << 20


def anywhere(flag: bool) -> bool:
    """Whether the flag is set in any process. All processes must call this in the same order."""
    return bool(gather(np.array(flag)).any())


def _alone():
    return not jax.distributed.is_initialized()  # unlike process_count, works before jax starts
