"""Checks the progress that a run prints to a pipe: time of day, pace, time left, few lines."""

import re
import sys
import threading

import pytest

from fedjax_lab.running import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only if a test sets it."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def lines(capsys):
    """The printed lines without the time of day, which each of them must have."""
    printed = capsys.readouterr().out.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in printed)
    return [line[10:] for line in printed]


def row(after, seed=0):
    return {"round": after, "seed": seed, "global": 80.0 + seed, "train_loss": 0.5, "seconds": 9.0}


def test_lines_have_the_pace_and_the_time_left(clock, capsys):
    with progress.ProgressBar(400, 0, quiet=False) as bar:
        bar.say("compiling")
        clock[0] += 100  # compilation is not counted
        bar.start_clock(0)
        clock[0] += 4
        bar.rounds(1, evaluated_next=False)
        for played in range(2, 101):  # at most one line a minute until the evaluation
            clock[0] += 4
            bar.rounds(played, evaluated_next=played == 100)
        bar.evaluated([row(100), row(100, 1)])
    first, *between, last = lines(capsys)[1:]
    assert first == "round 1/400  0.25 rounds/s  26:36 left"
    assert [line.split()[1] for line in between] == [f"{n}/400" for n in range(16, 100, 15)]
    assert last == "round 100/400  accuracy 80.50 %  train loss 0.5000  0.25 rounds/s  20:00 left"


def test_the_pace_of_a_resumed_run_counts_only_rounds_since_the_resume(clock, capsys):
    with progress.ProgressBar(10000, 4000, quiet=False) as bar:
        bar.start_clock(4000)
        clock[0] += 0.5
        bar.rounds(5000, evaluated_next=True)
        bar.evaluated([row(5000)])
        bar.start_clock(5000)  # in another stage
        clock[0] += 10000
        bar.rounds(5001, evaluated_next=False)
    assert lines(capsys) == [
        "round 5000/10000  accuracy 80.00 %  train loss 0.5000  2000 rounds/s  00:02 left",
        "round 5001/10000  0.0001 rounds/s  13886:06:40 left",
    ]


def test_a_part_has_a_second_bar_on_a_terminal_and_no_lines(monkeypatch, capsys):
    def play():
        with progress.ProgressBar(4, 0, quiet=False, part="fedavg") as bar:
            bar.tell("a remark")
            bar.say("compiling")
            bar.start_clock(0)
            bar.rounds(2, evaluated_next=True)
            bar.evaluated([row(2)])

    play()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    play()  # the results go to a file
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    play()
    out, err = capsys.readouterr()
    assert not out and "fedavg, round 2/4" in err and "remark" not in err


def test_a_slow_compilation_is_explained_in_one_line(monkeypatch, capsys):
    for seconds, said in ((60.0, []), (0.0, ["compiling a model"])):
        monkeypatch.setattr(progress, "SLOW_SECONDS", seconds)
        with progress.ProgressBar(4, 0, quiet=False) as bar:
            told = threading.Event()
            tell = bar.tell
            monkeypatch.setattr(bar, "tell", lambda text: (tell(text), told.set()))  # noqa: B023
            with bar.telling_if_slow("compiling a model"):
                assert told.wait(10) if said else not told.is_set()
        assert lines(capsys) == said


def test_a_terminal_shows_a_bar_and_a_quiet_run_prints_nothing(monkeypatch, capsys):
    with progress.ProgressBar(4, 0, quiet=True) as bar:
        bar.say("compiling")
        bar.start_clock(0)
        bar.rounds(4, evaluated_next=True)
        bar.evaluated([row(4)])
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.ProgressBar(4, 0, quiet=False) as bar:
        bar.start_clock(0)
        bar.rounds(2, evaluated_next=True)
        bar.evaluated([row(2)])
    out, err = capsys.readouterr()
    assert not out and " 2/4" in err and "rounds/s" in err and "accuracy 80.00 %" in err
