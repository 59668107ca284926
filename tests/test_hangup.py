"""A closed terminal, which sends SIGHUP, is treated as SIGTERM, unless SIGHUP is ignored."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedjax_lab.running import interrupts

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
COMMAND = """
import os, signal, sys, time
from fedjax_lab.commands import command
from fedjax_lab.running import interrupts
signal.signal(signal.SIGHUP, signal.SIG_{before})
command.begin()
def main(_):
    {body}
    return 7
command.run(lambda arguments: command.call(main, arguments, "do it again"), [])
"""
HANG_UP = "os.kill(os.getpid(), signal.SIGHUP)"
TWICE = """
    with interrupts.delayed("saving") as stop:
        for number in (signal.{first}, signal.SIGHUP):
            os.kill(os.getpid(), number)
            assert stop.wait(9)
            time.sleep(0.2)
"""


def ended(body, before="DFL"):
    """Runs the body as a command; returns its exit code, its output and its errors."""
    code = COMMAND.format(body=body, before=before)
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_a_hangup_ends_a_command_as_other_signals_do():
    assert ended(f"{HANG_UP}; time.sleep(30)") == (130, "", "interrupted; do it again\n")


def test_a_hangup_that_is_ignored_stays_ignored():
    assert ended(f"{HANG_UP}; time.sleep(0.2)", before="IGN") == (7, "", "")
    rearmed = f"with interrupts.delayed() as stop: {HANG_UP}; assert not stop.wait(0.2)"
    assert ended(rearmed, before="IGN") == (7, "", "")


@pytest.mark.parametrize("first", ["SIGHUP", "SIGTERM"])
def test_a_hangup_after_another_signal_does_not_end_the_saving(first):
    """A terminal that closes sends it from the shell and from the system."""
    assert ended(TWICE.format(first=first)) == (7, "saving\n", "")


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_program_that_is_not_a_command_handles_hangups_too(before, capfd):
    original = signal.signal(signal.SIGHUP, before)
    try:
        with interrupts.delayed("saving") as stop:
            os.kill(os.getpid(), signal.SIGHUP) if before is signal.SIG_DFL else None
            assert stop.is_set() == (before is signal.SIG_DFL)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, original)
