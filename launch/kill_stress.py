"""Kills one of two processes of a run at random moments, resumes it, and compares the results.

    python launch/kill_stress.py [--tries=10] [--devices=4] [--seed=0] -- --config=FILE.py ...

The arguments after -- are those of fedjax_lab.main; choose a run of about ten seconds. The script
prints a line for each try: when which process was killed, the message of the other one, and whether
the resumed run has the same rows and the same final state as an undisturbed run, bit for bit. The
exit code is 1 if any resumed run differs, or if the surviving process neither finished the run
without a message nor ended with exit code 1 and one line.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import free_port

COUNT = 2  # processes


@contextlib.contextmanager
def started(words, folder, devices):
    """Start the processes of one run, and kill those that are left at the end of the block."""
    command = [sys.executable, "-m", "fedjax_lab.main", *words, f"--workdir={folder}"]
    address = f"127.0.0.1:{free_port()}"
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    options["env"] = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
    processes = [
        subprocess.Popen([*command, f"--distributed={i}/{COUNT}@{address}"], **options)
        for i in range(COUNT)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def finish(words, folder, devices):
    """Run to the end; returns the seconds since the run's config was written."""
    with started(words, folder, devices) as processes:
        began = beginning(processes, folder)
        for process in processes:
            _, message = process.communicate(timeout=600)
            if process.returncode:
                sys.exit(f"exit code {process.returncode}: {message}")
    return time.monotonic() - began


def beginning(processes, folder):
    """Wait until the run has written its config, or a process has ended; returns that time."""
    while not (folder / "config.json").exists() and all(p.poll() is None for p in processes):
        time.sleep(0.01)
    return time.monotonic()


def results(folder):
    """The rows without their seconds, and the digests of the final state on devices and hosts."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    saved = json.loads((last / "digest/metadata").read_text())
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    return rows, [array for array in saved["arrays"] if not array["host"]], saved["kept"]


def attempt(words, folder, devices, choose, seconds):
    """Kill a process after up to `seconds`; returns whether the other one ended as it should.

    Returns None if the chosen process had already ended by then.
    """
    after, victim = choose.uniform(0, seconds), choose.randrange(COUNT)
    with started(words, folder, devices) as processes:
        beginning(processes, folder)
        time.sleep(after)
        if processes[victim].poll() is not None:
            return None
        processes[victim].kill()
        killed = time.monotonic()
        _, message = processes[1 - victim].communicate(timeout=120)
        code, took = processes[1 - victim].returncode, time.monotonic() - killed
    fine = code == 0 and not message or code == 1 and message.count("\n") == 1
    ending = f"the other ended {took:4.1f} s later with exit code {code}: {message.strip()}"
    print(f"{after:5.1f} s: process {victim} killed; {ending}")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag, default in (("tries", 10), ("devices", 4), ("seed", 0)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    parser.add_argument("words", nargs="+", help="flags of fedjax_lab.main, after --")
    args = parser.parse_args()
    choose, bad = random.Random(args.seed), 0
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "undisturbed"
        seconds = finish(args.words, whole, args.devices)
        for number in range(args.tries):
            folder = Path(scratch) / str(number)
            while (fine := attempt(args.words, folder, args.devices, choose, seconds)) is None:
                shutil.rmtree(folder)
            finish([*args.words, "--resume"], folder, args.devices)
            equal = results(folder) == results(whole)
            bad += not (fine and equal)
            print(f"         resumed: {'equal' if equal else 'DIFFERENT'}", flush=True)
    print(f"{bad} of {args.tries} tries failed")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
