"""Ends a process with a one-line message when another process of the run has ended.

JAX's coordination service detects that a process has ended: the first process by its closed
connection, any other by missing heartbeats. JAX's runtime in the other processes then prints a long
message to stderr and aborts, without a way to handle the event. Therefore the output of the runtime
is redirected to a file, and the handler of the abort signal reads the reason from that file.
"""

import ctypes
import os
import re
import signal

import jax

from fedjax_lab.commands import command
from fedjax_lab.engine import processes
from fedjax_lab.running import interrupts

NOTICE = "JAX distributed service detected fatal errors"
MISSED = re.compile(r"stopped sending heartbeats\):\s*([\d,\s]+)")

_kept: list = []  # keeps the file and the handler, which C code calls, from garbage collection


def watch() -> None:
    """Makes the end of another process end this one, with a one-line message and exit code 1."""
    file = command.divert_libraries()
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: _aborted(file))
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)  # runs in the aborting thread, which waits
    _kept.extend([file, handler])


def _aborted(file):
    printed = os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")
    if NOTICE not in printed:  # an abort for another reason
        interrupts.tell(printed, interrupts.stderr)
        return
    processes.let_others_end()
    command.fail(what_ended(printed, jax.process_count()))


def what_ended(printed: str, count: int) -> str:
    """A message with the numbers of the processes that have ended.

    printed: the output of JAX's runtime. count: the number of processes of the run.
    """
    missed = MISSED.search(printed)
    numbers = sorted(set(map(int, re.findall(r"\d+", missed[1])))) if missed else [0]
    which = ", ".join(f"{number}/{count}" for number in numbers)
    return f"another process of the run has ended: number {which}"
