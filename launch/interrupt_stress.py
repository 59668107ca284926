"""Interrupts a command at many moments and checks that it ends with one line and exit code 130.

    python launch/interrupt_stress.py [--first=0.1] [--last=8] [--step=0.3] [--signal=INT] \
        -- fedjax_lab.main --config=configs/quickstart.py --config.run.rounds=3

WORKDIR in an argument is replaced by a new folder for each try. The script prints a line for each
try: when the signal was sent, the exit code, the number of lines on stderr, the seconds until the
command ended, and its last line. A command that ends before the signal must end with exit code 0
and no line. The exit code of the script is 1 if any try ended differently.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

FINE = {0: 0, 130: 1}  # exit code -> lines on stderr


def attempt(words: list[str], after: float, number: int) -> tuple[int, list[str], float]:
    """The exit code, the lines on stderr, and the seconds from the signal to the end of a try.

    words: the module and its arguments. after: seconds until the signal. number: the signal.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [word.replace("WORKDIR", f"{folder}/new") for word in words]
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(after)
        process.send_signal(number)
        began = time.monotonic()
        _, message = process.communicate(timeout=300)
    return process.returncode, message.splitlines(), time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag, default in (("first", 0.1), ("last", 8.0), ("step", 0.3)):
        parser.add_argument(f"--{flag}", type=float, default=default)
    parser.add_argument("--signal", default="INT")
    parser.add_argument("words", nargs="+", help="the module and its arguments, after --")
    args = parser.parse_args()
    number, bad = signal.Signals[f"SIG{args.signal}"], 0
    for after in np.arange(args.first, args.last, args.step):
        code, lines, seconds = attempt(args.words, after, number)
        bad += FINE.get(code) != len(lines)
        last = lines[-1] if lines else ""
        print(f"{after:5.2f} s  {code:4}  {len(lines)} lines  {seconds:5.2f} s  {last[:100]}")
    print(f"{bad} tries failed")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
