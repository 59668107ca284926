"""One run by several processes, on one host or many: who they are, and how they agree.

All of them run the same program on one mesh of all their devices. What a process decides by itself
(a clock, a signal, a file) must be agreed on before the next program is started, or they would run
different ones and wait for each other for ever.
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

from fedjax_lab.errors import BadInput
from fedjax_lab.types import PyTree

T = TypeVar("T")
PIECE = 1 << 28  # bytes that are sent at a time
GRACE_SECONDS = 2.0
HEARTBEAT_SECONDS = 20  # without a sign of life until a process is given up; not its work is late,
# but a thread of JAX's runtime that needs neither the interpreter nor a device


def connect(place: str) -> None:
    """Waits for the other processes of the run. Before jax starts.

    `place` is I/N@HOST:PORT, this one's number, how many there are and where number 0 can be
    reached; or `auto`, where jax finds that itself (Slurm, TPU pods, MPI, Kubernetes). From then
    on only the first process prints.
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
    """After an exception. One that another process has caused by its end is not what to tell."""
    if _of_runtime(error):
        time.sleep(HEARTBEAT_SECONDS + 10)  # the runtime tells of that by then and ends this one
    tell(kind, error, trace)
    leave(1)


def _of_runtime(error):
    while error is not None and not isinstance(error, jax.errors.JaxRuntimeError):
        error = error.__cause__ or error.__context__
    return error is not None


def leave(code: int) -> NoReturn:
    """Ends this process; after a failure without waiting for others, which may wait for it."""
    if code and not _alone():
        sys.stdout.flush()
        sys.stderr.flush()
        let_others_end()
        os._exit(code)
    sys.exit(code)


def let_others_end() -> None:
    """In the first process, whose end ends all others at once, time for what they have to say."""
    if is_first():
        time.sleep(GRACE_SECONDS)


def parse(place: str) -> dict:
    """The arguments of jax.distributed.initialize."""
    if place == "auto":
        return {}
    match = re.fullmatch(r"(\d+)/(\d+)@(.+:\d+)", place)
    if match is None or int(match[1]) >= int(match[2]):
        example = "--distributed=0/2@127.0.0.1:7000"
        raise BadInput(f"--distributed={place} is neither auto nor I/N@HOST:PORT, as {example}")
    return {
        "process_id": int(match[1]),
        "num_processes": int(match[2]),
        "coordinator_address": match[3],
        "cluster_detection_method": "deactivate",
    }


def is_first() -> bool:
    """Whether this process writes files and prints."""
    return number() == 0


def number() -> int:
    """This one's, from 0."""
    return 0 if _alone() else jax.process_index()


def count() -> int:
    """How many processes the run has."""
    return 1 if _alone() else jax.process_count()


def of_first(make: Callable[[], T]) -> T:
    """What `make` gives in the first process, where alone it is called; its BadInput too.

    All processes must ask, in the same order. The value has to be picklable.
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
    """The arrays as NumPy's, of which each process may hold a part. All must ask."""
    return jax.device_get(a) if _alone() else multihost_utils.process_allgather(a, tiled=True)


def of_each(a: np.ndarray) -> np.ndarray:
    """The arrays of all processes, equal in shape and type, [processes, ...]. All must ask."""
    return a[None] if _alone() else multihost_utils.process_allgather(a)


def least(number: int) -> int:
    """The smallest of all processes' numbers of bytes. All must ask, in the same order."""
    if _alone():
        return number
    megabytes = np.array(number >> 20, np.int32)
    return int(multihost_utils.process_allgather(megabytes).min()) << 20


def anywhere(flag: bool) -> bool:
    """Whether it is set in any process. All must ask, in the same order."""
    if _alone():
        return flag
    return bool(multihost_utils.process_allgather(np.array(flag)).any())


def _alone():
    return not jax.distributed.is_initialized()  # asked before jax starts
