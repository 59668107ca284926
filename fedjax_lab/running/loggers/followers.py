"""Calls the loggers of a run, each in its own thread, so that no service delays the run."""

import contextlib
import itertools
import json
import operator
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedjax_lab.engine import processes
from fedjax_lab.errors import reason_of, warn
from fedjax_lab.experiment.experiment import Experiment
from fedjax_lab.running.loggers import Begin, Facts
from fedjax_lab.running.storage import files, metric_rows
from fedjax_lab.running.storage.workdir import saved_config

LAST_SECONDS = 20.0  # time limit for all loggers together at the end of a run
FILE = "loggers.json"  # in a run's folder: the id and the newest round of each logger
_KEPT = {"*": {"id?": files.TEXT, "round": files.COUNT}}


@contextlib.contextmanager
def of_run(
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
        config=json.loads(json.dumps(saved_config(experiment.config, experiment.simulation.seeds))),
    )
    following = Followers(loggers, facts)
    for _, evaluation in itertools.groupby(rows, operator.itemgetter("round")):
        following.tell(list(evaluation))
    try:
        yield following
    finally:
        following.end(None)


def joint(each: Sequence["Followers"], counts: Sequence[int]) -> Callable[[list[dict]], None]:
    """A function that passes an evaluation of several joint runs to the loggers of each run.

    counts: the number of seeds of each run.
    """

    def tell(rows):
        of_seeds = iter(rows)
        for following, count in zip(each, counts, strict=True):
            following.tell(list(itertools.islice(of_seeds, count)))

    return tell


class Followers:
    """The loggers of a run."""

    def __init__(self, loggers: dict[str, Begin], facts: Facts):
        """facts: the facts about the run that each logger receives."""
        kept = _Kept(facts.folder)
        self._followers = []
        for name, begin in loggers.items() if processes.is_first() else ():
            earlier = kept.read(name)
            follower = _Follower(name, begin, facts._replace(**earlier), kept)
            self._followers.append(follower)

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


class _End:
    """The last item in a follower's queue."""

    def __init__(self, summary: dict | None):
        self.summary = summary


class _Kept:
    """The content of loggers.json, shared by the threads of all loggers."""

    def __init__(self, folder: Path | None):
        self._path = folder and folder / FILE
        self._lock = threading.Lock()
        self._content: dict[str, dict] = {}
        if self._path is not None:
            with contextlib.suppress(files.Damaged):  # then each logger starts over
                self._content = files.read_json(self._path, _KEPT) or {}

    def read(self, name):
        kept = self._content.get(name, {})
        return {key: kept[key] for key in ("id", "round") if key in kept}

    def write(self, name, id, round_):
        if self._path is not None:
            with self._lock:
                of_service = {} if id is None else {"id": str(id)}
                self._content[name] = {**of_service, "round": round_}
                metric_rows.write_json(self._path, self._content)


class _Follower:
    """A logger and its thread."""

    def __init__(self, name, begin, facts, kept):
        self.queue = queue.SimpleQueue()
        self._name, self._begin, self._facts, self._kept = name, begin, facts, kept
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
            self._keep(self._logger.round)
        while self._waiting:
            rows = self._waiting[0]
            if rows[0]["round"] > self._logger.round:
                self._logger.log(rows)
                self._keep(rows[0]["round"])
            del self._waiting[0]

    def _keep(self, round_):
        if not self._is_late:  # else another command may own the folder
            self._kept.write(self._name, self._logger.id, round_)

    def _warn(self, reason):
        if not self._failed:
            self._failed = True
            remedy = "use --resume with the same --log to log the missing evaluations"
            warn(f"--log={self._name}: {reason}; the run is not affected; {remedy}")
