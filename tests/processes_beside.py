"""A separate process that holds a file lock."""

import contextlib
import subprocess
import sys

HOLD = """
import sys, filelock
with filelock.FileLock(sys.argv[1]):
    print(flush=True)
    input()
"""


@contextlib.contextmanager
def another_process(path):
    """Yields a process that holds the lock of this path."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], **options)
    assert process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
