"""One line where another process of the run has ended, in place of what JAX's runtime does then.

JAX's coordination service notices a process that is gone: the first one by its closed connection,
any other by its missing heartbeats. The runtime of all others then prints a page to stderr and
aborts, and offers no way to do anything else. So what the runtime prints goes to a file, and the
signal of the abort reads there what has happened.
"""

import ctypes
import os
import re
import signal

import jax

from fedjax_lab import command, interrupts, processes

NOTICE = "JAX distributed service detected fatal errors"
MISSED = re.compile(r"stopped sending heartbeats\):\s*([\d,\s]+)")

_kept: list = []  # what must not be collected: the file, and the handler, which C code calls


def watch() -> None:
    """From now on the end of another process ends this one with one line and exit code 1."""
    file = command.divert_libraries()
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: _aborted(file))
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)  # runs in the aborting thread, which waits
    _kept.extend([file, handler])


def _aborted(file):
    printed = os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")
    if NOTICE not in printed:  # an abort of another kind
        interrupts.tell(printed, interrupts.stderr)
        return
    processes.let_others_end()
    command.fail(what_ended(printed, jax.process_count()))


def what_ended(printed: str, count: int) -> str:
    """Which of the `count` processes are gone, from what the runtime has printed."""
    missed = MISSED.search(printed)
    numbers = sorted(set(map(int, re.findall(r"\d+", missed[1])))) if missed else [0]
    which = ", ".join(f"{number}/{count}" for number in numbers)
    return f"another process of the run has ended: number {which}"
