"""Calls the loggers of a run, each in its own thread, so that no service delays the run."""

import contextlib
import itertools
import json
import operator
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_lab.engine import processes
from fedjax_lab.errors import reason_of, warn
from fedjax_lab.experiment.experiment import Experiment
from fedjax_lab.running.growth import saved_config
from fedjax_lab.running.loggers import Begin, Facts
from fedjax_lab.running.storage import files, metric_rows

LAST_SECONDS = 20.0  # time limit for all loggers together at the end of a run
FILE = "loggers.json"  # in a run's folder: the id and the newest round of each logger
_KEPT = {"*": {"id?": files.TEXT, "round": files.COUNT}}


@contextlib.contextmanager
def start(
    loggers: dict[str, Begin], experiment: Experiment, path: Path | None, rows: list[dict]
) -> Iterator["Followers"]:
    """Starts the loggers of a run; they end with the context at the latest.

    Args:
      loggers: the functions that start the loggers, by name.
      experiment: the experiment of the run.
      path: the folder of the run; None: no folder.
      rows: the evaluations that the run already has.
    """
    folder = path and path.absolute()
    in_sweep = folder is not None and (folder.parent / "sweep.json").exists()
    facts = Facts(
        name=folder.name if folder else experiment.config.method.name,
        group=folder.parent.name if folder and in_sweep else None,
        folder=path,
        config=json.loads(
            json.dumps(saved_config(experiment.config, experiment.simulation.seed_numbers))
        ),
    )
    following = Followers(loggers, facts)
    for _, evaluation in itertools.groupby(rows, operator.itemgetter("round")):
        following.tell(list(evaluation))
    try:
        yield following
    finally:
        following.end(None)


class _End(NamedTuple):
    """The last item in a follower's queue."""

    summary: dict | None


class Followers:
    """The loggers of a run."""

    def __init__(self, loggers: dict[str, Begin], facts: Facts):
        """facts: the facts about the run that each logger receives."""
        self._path = facts.folder and facts.folder / FILE
        self._lock = threading.Lock()  # of the file, which the threads of all loggers share
        self._kept: dict[str, dict] = {}
        if self._path is not None:
            with contextlib.suppress(files.Damaged):  # then each logger starts over
                self._kept = files.read_json(self._path, _KEPT) or {}
        self._followers = []
        for name, begin in loggers.items() if processes.is_first() else ():
            kept = self._kept.get(name, {})
            earlier = {key: kept[key] for key in ("id", "round") if key in kept}
            follower = _Follower(name, begin, facts._replace(**earlier), self._keep)
            self._followers.append(follower)

    def _keep(self, name, id, round_):
        if self._path is not None:
            with self._lock:
                of_service = {} if id is None else {"id": str(id)}
                self._kept[name] = {**of_service, "round": round_}
                metric_rows.write_json(self._path, self._kept)

    def tell(self, rows: list[dict]) -> None:
        """Logs an evaluation, given as one row for each seed."""
        for follower in self._followers:
            follower.queue.put(rows)

    def end(self, summary: dict | None) -> None:
        """Ends all loggers and waits for them, for at most LAST_SECONDS.

        summary: the content of summary.json; None: the run did not finish.
        """
        until = time.monotonic() + LAST_SECONDS
        for follower in self._followers:
            follower.queue.put(_End(summary))
        for follower in self._followers:
            follower.wait(until - time.monotonic())
        self._followers = []


class _Follower:
    """A logger and its thread."""

    def __init__(self, name, begin, facts, keep):
        self.queue = queue.SimpleQueue()
        self._name, self._begin, self._facts, self._keep = name, begin, facts, keep
        self._logger: Any = None  # None until it has started
        self._waiting: list[list[dict]] = []  # evaluations not logged yet
        self._failed = self._is_late = False
        self._thread = threading.Thread(target=self._work, name=f"log to {name}", daemon=True)
        self._thread.start()

    def wait(self, seconds):
        """Waits until the logger has ended, for at most this many seconds."""
        self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            self._is_late = True
            self._warn("logging takes too long")

    def _work(self):
        end = None
        while end is None and not self._is_late:
            news = [self.queue.get()]
            while not self.queue.empty():
                news.append(self.queue.get())
            if isinstance(news[-1], _End):
                end = news.pop()
            self._waiting += news
            try:
                self._catch_up()
                if end is not None:
                    self._logger.end(end.summary)
                self._failed = False
            except (Exception, SystemExit) as error:
                self._warn(reason_of(error))

    def _catch_up(self):
        """Starts the logger if needed, then logs all waiting evaluations."""
        if self._logger is None:
            self._logger = self._begin(self._facts)
            self._logged(self._logger.round)
        while self._waiting:
            rows = self._waiting[0]
            if rows[0]["round"] > self._logger.round:
                self._logger.log(rows)
                self._logged(rows[0]["round"])
            del self._waiting[0]

    def _logged(self, round_):
        if not self._is_late:  # else another command may own the folder
            self._keep(self._name, self._logger.id, round_)

    def _warn(self, reason):
        if not self._failed:
            self._failed = True
            remedy = "use --resume with the same --log to log the missing evaluations"
            warn(f"--log={self._name}: {reason}; the run is not affected; {remedy}")
