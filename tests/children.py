"""Commands of the package in processes of their own, which compile as quickly as the tests."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def start(*command, devices=1, **options):
    """Starts Python with this command and number of devices; its output is text in pipes."""
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_NUM_CPU_DEVICES": str(devices)}
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **quick},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def run(code, **environment):
    """The finished process of this code, whose output is text."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def finish(process, code=0):
    """Waits for the end of a process with this exit code; returns its output and its errors."""
    out, error = process.communicate(timeout=300)
    assert process.returncode == code, error
    return out, error
