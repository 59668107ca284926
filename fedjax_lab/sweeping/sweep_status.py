"""Reports the state of a sweep, read from its folder while commands may be running in it.

No file is changed. A run counts as running if a process holds the lock on its folder; a run in the
cloud, or on a file system without locks, therefore looks stopped.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_lab.errors import BadInput, printable
from fedjax_lab.running.storage import cloud, files, lock
from fedjax_lab.sweeping.sweep_folder import DIVERGED, heading, last_ending, shown

# The states of a run, in the order of the table. "stopped": started, not finished, and no command
# is running it.
STATES = ("running", "stopped", "failed", "diverged", "waiting", "done")


class Status(NamedTuple):
    """The progress of a run, according to its folder."""

    name: str
    state: str  # one of STATES
    played: int  # number of rounds played
    rounds: int  # number of rounds of the whole run
    seeds: int  # number of seeds
    seconds: float  # time taken by the rounds, as far as it was recorded
    since: float | None  # when it got this state, in seconds since the epoch; None: unknown
    said: str  # the accuracy, or the reason why there is none


def read(out: Path) -> list[Status]:
    """The state of every planned run of the sweep in a folder. Raises BadInput without a sweep."""
    if not (out / "sweep.json").exists():
        raise BadInput(f"{cloud.address(out)} holds no sweep: there is no sweep.json in it")
    cells = files.read_plan(out / "sweep.json")
    each = [_status(out / name, name, cell["config"]) for name, cell in cells.items()]
    return sorted(each, key=lambda status: STATES.index(status.state))


def _status(folder, name, planned):
    """The state of one run; a run with damaged files counts as failed."""
    try:
        held = lock.is_held(folder)  # first: a run that then ends has an outcome
        outcome, summary = last_ending(folder)
        state, since = _state(folder, held, outcome)
        config = files.read_config(folder / "config.json") or planned
        rows = files.read_rows(folder / "metrics.jsonl", files.EVALUATION)
        said = shown(folder) if state in ("failed", "diverged", "done") else ""
    except files.Damaged as error:
        return Status(name, "failed", 0, _rounds(planned), 0, 0.0, None, str(error))
    played = max([row["round"] for row in rows[-1:]] + _checkpoints(folder), default=0)
    return Status(
        name=name,
        state=state,
        played=summary.get("rounds", played),
        rounds=summary.get("rounds", max(_rounds(config), played)),
        seeds=len(config["seeds"]),
        seconds=_seconds(summary, rows),
        since=since,
        said=said.removeprefix("failed: "),
    )


def _state(folder, held, outcome):
    """One of STATES, and the time since which the run has it, or None; held: by a command."""
    if held:
        return "running", _changed(folder / lock.LOCK)
    if outcome and outcome.code in (0, DIVERGED):
        return "diverged" if outcome.code else "done", _changed(folder / "summary.json")
    if outcome:
        return "failed", _changed(folder / "error.txt")
    if (folder / "config.json").exists():
        times = [_changed(folder / name) for name in ("metrics.jsonl", "checkpoints")]
        return "stopped", max(filter(None, times), default=_changed(folder / "config.json"))
    return "waiting", None


def _changed(path):
    """When a file was last written, in seconds since the epoch; None if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _rounds(config):
    rounds = config["run"].get("rounds")
    return rounds if type(rounds) is int else 0


def _checkpoints(folder):
    return [int(path.name) for path in folder.glob("checkpoints/[0-9]*") if path.name.isdigit()]


def _seconds(summary, rows):
    keys = ("seconds", "evaluate_seconds", "compile_seconds")
    if summary:
        return sum(summary.get(key) or 0.0 for key in keys) / summary.get("runs_together", 1)
    return rows[-1]["seconds"] if rows else 0.0


# Text output.


def text(
    statuses: Sequence[Status], commands: int, now: float, measured: str = "accuracy, %"
) -> str:
    """A table with a line for each run, followed by their counts and an estimate of the time left.

    commands: number of sweep commands running in the folder. now: seconds since the epoch.
    measured: the metric of the runs' numbers.
    """
    rows = [["state", "run", "round", "since", f"{measured} (or what went wrong)"]]
    for each in statuses:
        done = f"{each.played}/{each.rounds}" if each.rounds else ""
        since = "" if each.since is None else _time(each.since, now)
        rows.append([each.state, each.name, done, since, each.said])
    counts = Counter(each.state for each in statuses)
    totals = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    return "\n".join(
        [aligned(rows), "", f"{len(statuses)} runs: {totals}", _end(statuses, commands)]
    )


def _end(statuses, commands):
    """The estimate of the remaining time, in words."""
    if all(each.state in ("done", "diverged") for each in statuses):
        return "all runs planned so far have ended"
    left = _seconds_left(statuses)
    at_once = max(1, sum(each.state == "running" for each in statuses))
    pace = "no estimate of the time left yet"
    if left is not None:
        each_at = f"{at_once} run{'s' * (at_once > 1)} at a time"
        pace = f"about {duration(left / at_once)} left at the pace so far, {each_at}"
    if not commands and not any(each.state == "running" for each in statuses):
        return f"no command is running this sweep; repeat its command to continue it; {pace}"
    return pace


def _seconds_left(statuses: Iterable[Status]) -> float | None:
    """The remaining run time at the mean pace of all rounds played; None if there are none."""
    begun = [each for each in statuses if each.seconds and each.played]
    played = sum(each.played * each.seeds for each in begun)
    if not played:
        return None
    left = [each for each in statuses if each.state not in ("done", "diverged")]
    todo = sum((each.rounds - each.played) * each.seeds for each in left)
    return sum(each.seconds for each in begun) / played * todo


def _time(moment, now):
    """The time of day, with the date unless it is today's, and how long ago it was."""
    then, today = time.localtime(moment), time.localtime(now)
    form = "%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M"
    return f"{time.strftime(form, then)} ({duration(max(0.0, now - moment))})"


def duration(seconds: float) -> str:
    """A duration in words, such as "40 s", "12 min", "3 h 20 min" or "2 d 5 h"."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table as text; the first row is its header."""
    rows = [list(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def show(out: Path) -> str:
    """The state of the sweep in a folder, as text."""
    statuses, commands = read(out), len(lock.held_shares(out))
    measured = heading(out / status.name for status in statuses)
    return text(statuses, commands, time.time(), measured)
