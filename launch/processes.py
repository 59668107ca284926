"""One run of fedjax_lab.main by several processes on this machine, over the loopback interface.

    python launch/processes.py [--processes=2] [--devices=N] -- --config=configs/quickstart.py ...

The numbers are those of one process with as many devices. `devices`: CPU devices of each process;
its share of the cores by default. The exit code is that of fedjax_lab.main. Ctrl-C and SIGTERM are
passed on: once to stop with the state saved, twice to stop at once. When a process fails, the
others notice and end; those that still wait for it after 40 seconds are killed.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

POLL_SECONDS, GRACE_SECONDS = 0.1, 40.0  # the others notice within 20 s, and say so


def main() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices", type=int)
    parser.add_argument("arguments", nargs="+", help="of fedjax_lab.main, after --")
    args = parser.parse_args()
    devices = args.devices or max(1, cores // args.processes)
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "fedjax_lab.main", *args.arguments]
    children, told = [], []

    def pass_on(number, frame):
        for child in children:
            child.send_signal(signal.SIGKILL if told else number)
        told.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    for i in range(args.processes):
        place = f"--distributed={i}/{args.processes}@{address}"
        # In a group of its own, so that Ctrl-C reaches it once.
        child = subprocess.Popen(
            [*command, place],
            env={**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)},
            process_group=0,
        )
        children.append(child)
    return wait(children)


def wait(children: list[subprocess.Popen]) -> int:
    """The exit code of the first of them that failed; 0 where none did."""
    failed, since = 0, None
    while running := [child for child in children if child.poll() is None]:
        if not failed and (codes := [child.returncode for child in children if child.returncode]):
            failed, since = codes[0], time.monotonic()
        if failed and time.monotonic() - since > GRACE_SECONDS:
            for child in running:
                child.kill()
        time.sleep(POLL_SECONDS)
    code = failed or next((c.returncode for c in children if c.returncode), 0)
    return code if code >= 0 else 128 - code  # a signal, as a shell tells it


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
