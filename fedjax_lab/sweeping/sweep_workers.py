"""Runs the cells of a sweep as commands in separate processes, several at a time."""

import contextlib
import mmap
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from tqdm import tqdm

from fedjax_lab.errors import BadInput, printable
from fedjax_lab.running import interrupts
from fedjax_lab.running.storage import cloud
from fedjax_lab.sweeping.sweep_folder import Outcome, make_ready, tail
from fedjax_lab.sweeping.sweep_plan import Cell, Shared

POLL_SECONDS = 0.2
STOPPING = "stopping the running cells, which save their state; press Ctrl-C again to quit now"


class _Worker(NamedTuple):
    """A slot for one process at a time."""

    environment: dict[str, str]
    cores: set[int] | None  # the CPU cores to use; None: all


class _Job(NamedTuple):
    """A running cell."""

    process: subprocess.Popen
    cell: Cell
    worker: _Worker
    stderr: IO[str]


def run_in_workers(
    cells: Iterable[Cell], out: Path, shared: Shared, count: int
) -> Iterator[tuple[Cell, Outcome]]:
    """Runs cells as commands, `count` at a time; yields each cell with its outcome when it ends.

    A cell is taken when a process is free for it. If the generator is closed early, the running
    cells save their state and stop.
    """
    waiting, free = iter(cells), _workers(count)
    jobs: list[_Job] = []
    more, hidden = True, not sys.stderr.isatty()
    bar = tqdm(bar_format="{desc}", position=1, leave=False, disable=hidden, dynamic_ncols=True)
    with interrupts.delayed(STOPPING) as stop, bar:
        try:
            while more or jobs:
                if stop.is_set():
                    raise KeyboardInterrupt
                while free and more:
                    cell = next(waiting, None)
                    if more := cell is not None:
                        jobs.append(_begin(cell, free.pop(0), out, shared))
                time.sleep(POLL_SECONDS)
                if not hidden:
                    bar.set_description_str(described([job.cell for job in jobs], out))
                for job in [job for job in jobs if job.process.poll() is not None]:
                    jobs.remove(job)
                    free.append(job.worker)
                    cloud.fetch(out / job.cell.name)
                    yield job.cell, _end(job)
        finally:
            _stop(jobs)


def described(cells: Iterable[Cell], out: Path) -> str:
    """The running cells, and the last evaluated round of each one, as far as its file has one."""
    texts = []
    for cell in cells:
        played = played_in(out / cell.name / "metrics.jsonl")
        texts.append(f"{cell.name} {played}/{cell.config.run.rounds}" if played else cell.name)
    return printable(", ".join(texts))


def played_in(metrics: Path) -> int:
    """The round in the last line of a metrics.jsonl; 0 if there is none. Reads only its end."""
    with contextlib.suppress(OSError, ValueError), open(metrics, "rb") as opened:
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
            at = max(text.rfind(b'{"round": '), 0)
            match = re.match(rb'{"round": (\d+),', text[at : at + 40])
            return int(match[1]) if match else 0
    return 0


def _begin(cell, worker, out, shared):
    stderr = tempfile.TemporaryFile("w+")
    command = _command(cell, make_ready(out / cell.name), shared)
    process = _start(command, worker, stderr)
    interrupts.children.add(process)
    return _Job(process, cell, worker, stderr)


def _end(job):
    interrupts.children.discard(job.process)
    job.stderr.seek(0)
    return Outcome(job.process.returncode, tail(job.stderr.read()))


def _stop(jobs):
    for job in jobs:
        job.process.terminate()
    for job in jobs:
        job.process.wait()
        interrupts.children.discard(job.process)


def _command(cell, folder, shared):
    words = [sys.executable, "-m", "fedjax_lab.main", f"--config={shared.path}:{cell.method}"]
    words += [f"--workdir={cloud.address(folder)}", f"--seeds={','.join(map(str, cell.seeds))}"]
    words += ["--nocompilation_cache"] * (not shared.compilation_cache)
    words += [f"--log={shared.log}"] * bool(shared.log) + ["--trust"] * shared.trust
    settings = [*shared.overrides, *cell.grid.items()]
    words += [f"--config.{key}={text}" for key, text in settings]
    return words + ["--resume"] * (folder / "config.json").exists()


def _start(command, worker, stderr):
    """Starts a process in its own group, so that it gets Ctrl-C only once, from this process."""
    start = partial(
        subprocess.Popen,
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env={**os.environ, **worker.environment},
        process_group=0,
    )
    if worker.cores is None:
        return start()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, worker.cores)  # the new process inherits this
    try:
        return start()
    finally:
        os.sched_setaffinity(0, cores)


def _workers(count):
    backend, devices = _devices()
    environment = {}
    if backend == "cpu":
        if not hasattr(os, "sched_getaffinity"):
            return [_Worker(environment, None)] * count
        cores = sorted(os.sched_getaffinity(0))
        shares = [set(cores[i % len(cores) :: count]) for i in range(count)]
        return [_Worker(environment, share) for share in shares]
    if count > devices:
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # processes share a device
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = visible.split(",") if visible else list(map(str, range(devices)))
    return [
        _Worker({**environment, "CUDA_VISIBLE_DEVICES": visible[i % devices]}, None)
        for i in range(count)
    ]


def _devices():
    """The kind and number of devices, queried in a separate process, which then frees them."""
    ask = "import jax; print(jax.default_backend(), jax.local_device_count())"
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    if asked.returncode:
        reason = asked.stderr.strip().splitlines()[-1:]
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise BadInput(f"JAX_PLATFORMS={platforms}: jax finds no device: {' '.join(reason)}")
    backend, devices = asked.stdout.split()
    return backend, int(devices)
