"""One run of fedjax_lab.main by several processes on this machine, over the loopback interface.

    python launch/processes.py [--processes=2] [--devices=N] -- --config=configs/quickstart.py ...

The results are the same as those of one process with the same total number of devices.
--devices is the number of CPU devices of each process; by default it is the number of cores divided
by the number of processes. The exit code is that of fedjax_lab.main. Ctrl-C and SIGTERM are passed
on to all processes: the first one saves the state and stops, the second one stops immediately. If
one process fails, the others notice it and end; those that have not ended 40 seconds later are
killed.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

POLL_SECONDS, GRACE_SECONDS = 0.1, 40.0  # JAX's heartbeat reports a lost process within 20 s


def main() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices", type=int)
    parser.add_argument("arguments", nargs="+", help="flags of fedjax_lab.main, after --")
    args = parser.parse_args()
    devices = args.devices or max(1, cores // args.processes)
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "fedjax_lab.main", *args.arguments]
    children, received = [], []

    def pass_on(number, frame):
        for child in children:
            child.send_signal(signal.SIGKILL if received else number)
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    for i in range(args.processes):
        place = f"--distributed={i}/{args.processes}@{address}"
        # In its own process group, so that Ctrl-C reaches it only through pass_on.
        child = subprocess.Popen(
            [*command, place],
            env={**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)},
            process_group=0,
        )
        children.append(child)
    return wait(children)


def wait(children: list[subprocess.Popen]) -> int:
    """Wait for all processes; returns the exit code of the first one that failed, or 0."""
    failed, since = 0, None
    while running := [child for child in children if child.poll() is None]:
        if not failed and (codes := [child.returncode for child in children if child.returncode]):
            failed, since = codes[0], time.monotonic()
        if failed and time.monotonic() - since > GRACE_SECONDS:
            for child in running:
                child.kill()
        time.sleep(POLL_SECONDS)
    code = failed or next((c.returncode for c in children if c.returncode), 0)
    return code if code >= 0 else 128 - code  # death by a signal, as shells report it


def free_port() -> int:
    """A TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
