"""Interrupts a run at a given round."""

import threading
from contextlib import contextmanager

from fedjax_lab.engine.engine import Engine
from fedjax_lab.running import runner


def stopping_after(rounds, monkeypatch):
    """Interrupts the next run as soon as it has played this many rounds."""
    stop = threading.Event()

    @contextmanager
    def delayed():
        yield stop

    play = Engine.play

    def counted(self, at_most):
        play(self, min(at_most, rounds - self.played))
        if self.played >= rounds:
            stop.set()

    monkeypatch.setattr(runner.interrupts, "delayed", delayed)
    monkeypatch.setattr(Engine, "play", counted)
