"""The folder of a run: which command may write to it, and its files in the order of writing.

config.json exists once a run has begun, summary.json once it has finished. Each file is written
under a temporary name and renamed after its content is on disk.
"""

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_lab.data import writing
from fedjax_lab.data.dataset import fingerprint_of
from fedjax_lab.engine import processes
from fedjax_lab.engine.engine import Engine
from fedjax_lab.errors import BadInput, reason_of, warn
from fedjax_lab.experiment import run_names, titles
from fedjax_lab.experiment.experiment import Experiment
from fedjax_lab.running import growth, resuming, stopping
from fedjax_lab.running.storage import cloud, files, lock, metric_rows
from fedjax_lab.running.storage.checkpoint import Checkpoints

BEFORE = ("partition.png", "partition.csv", "error.txt", "names.json", "fingerprint.json")
# files that a folder may hold before its run begins
SAVE_SECONDS = 5.0  # the least time between two checkpoints
SAVE_SHARE = 0.1  # the largest share of a run's time that checkpoints may take


# Ownership.


@contextlib.contextmanager
def owned(path: Path | None, config, seeds: list[int], resume: bool) -> Iterator[None]:
    """Gives this run exclusive ownership of its folder while the context is active.

    The folder is created if needed, and removed at the end if nothing was written to it. If a run
    has several processes, the first one is the owner. The owner may enter the context again.

    Args:
      path: the folder; None: nothing is owned.
      config: the config of the run.
      seeds: the seeds of the run.
      resume: whether the folder may already hold a part of this run.

    Raises:
      BadInput: another command uses the folder, it holds another run, it is not empty although
        `resume` is false, it is not writable, or the processes of the run see different folders.
    """
    with contextlib.ExitStack() as until_the_end:
        if path is not None:
            processes.call_in_first(lambda: _take(until_the_end, path, config, seeds, resume))
            _check_shared(path)
        yield


def _take(until_the_end, path, config, seeds, resume):
    until_the_end.enter_context(lock.owned(path))
    _check_content(path, config, seeds, resume)
    until_the_end.enter_context(cloud.owned(path))
    _check_content(path, config, seeds, resume)


def _check_shared(path):
    """Raises BadInput unless every process sees the files that the first process writes."""
    if not jax.distributed.is_initialized():
        return
    if cloud.is_remote(path):
        raise BadInput(
            f"{path} cannot hold a run of several processes, because each process writes a part of"
            " each checkpoint; mount the bucket as a folder that all hosts share, and name that"
        )
    token = processes.call_in_first(lambda: path / f".seen-by-all-{os.urandom(4).hex()}.tmp")
    processes.call_in_first(token.touch)
    is_missing = processes.anywhere(not token.exists())
    processes.call_in_first(token.unlink)
    if is_missing:
        raise BadInput(
            f"{path} is not the same folder for all processes of the run: each process writes a"
            " part of each checkpoint, so the folder must be on a file system that all hosts share"
        )


def _check_content(path, config, seeds, resume):
    if not any(_is_run_file(file) for file in path.iterdir()):
        return
    if not resume:
        raise BadInput(f"{path} is not empty; use --resume to continue its run")
    growth.check_config(path, growth.saved_config(config, seeds))
    growth.check_version(path)


def _is_run_file(file):
    """Whether a run wrote the file; false for files allowed before a run and temporary files."""
    return not (file.name in BEFORE or file.name.startswith(".") or writing.is_temporary(file))


# Files.


class Workdir:
    """The files of a run in a folder that is `owned`.

    Only the first process reads and writes the files, and passes their content to the others.
    Checkpoints are the exception: all processes read and write them.
    """

    def __init__(self, path: Path, experiment: Experiment):
        """Raises BadInput if the folder holds a run on other data."""
        self.path = path
        self._experiment = experiment
        self._fingerprint = processes.call_in_first(lambda: resuming.check_data(path, experiment))
        self._checkpoints: Any = None  # None until `open` is called
        self._next_save = -np.inf

    def open(self) -> None:
        """Starts writing to the folder. Call this after all checks of the run have passed."""
        processes.call_in_first(self._begin)
        self._checkpoints = Checkpoints(self.path / "checkpoints")

    def _begin(self):
        for folder in (self.path, self.path / "stages", self.path / "plots"):
            remove_temporary(folder)
        if not (self.path / "config.json").exists():  # else the files have the same content
            built, simulation = self._experiment, self._experiment.simulation
            config = growth.saved_config(built.config, simulation.seed_numbers)
            names = run_names.names_of_run(built.dataset, simulation.seeds)
            metric_rows.write_text(self.path / "names.json", json.dumps(names) + "\n")
            metric_rows.write_json(self.path / "fingerprint.json", self._fingerprint)
            metric_rows.write_json(self.path / "config.json", config)
            cloud.publish(self.path)

    def restore(self, new: Callable[[], Engine]) -> tuple[Engine, list[dict]]:
        """Opens the folder and continues its run.

        Afterward the folder has the experiment's config and no data from later rounds.

        Args:
          new: makes a new engine.

        Returns:
          The engine at the newest intact checkpoint, and the metrics rows up to it.

        Raises:
          BadInput: a required file is damaged or lost, or the run cannot be resumed with this
            number of rounds. In this case no file has been changed.
        """
        engine = new()
        self.open()
        made = resuming.evaluations(self.path, self._experiment)
        engine, rows = resuming.read(self.path, self._experiment, self._checkpoints, engine, new)
        if not is_over(self._experiment, engine, rows):
            processes.call_in_first(lambda: (self.path / "summary.json").unlink(missing_ok=True))
        self._checkpoints.forget_after(engine.played)
        metrics = self.path / "metrics.jsonl"
        processes.call_in_first(lambda: metric_rows.keep_until(metrics, engine.played))
        today = times(self.path, self._experiment, engine)
        processes.call_in_first(
            lambda: resuming.adopt(self.path, self._experiment, engine.played, made, today)
        )
        self._publish()
        return engine, rows

    def summary(self) -> dict | None:
        """The summary of a run that an earlier process has finished; None if none has."""
        file = self.path / "summary.json"
        return processes.call_in_first(lambda: files.read_json(file, files.FINISHED))

    def append(self, rows: list[dict]) -> None:
        """Adds rows to metrics.jsonl."""
        if processes.is_first():
            metric_rows.append(self.path / "metrics.jsonl", rows)

    def save(self, engine: Engine, force: bool, part: Callable = lambda whole: whole) -> None:
        """Saves a checkpoint of `part` of the snapshot, unless the last one is only seconds old.

        Checkpoints that take long are saved less often, see `SAVE_SHARE`.

        Args:
          engine: the engine whose state is saved.
          force: whether to save a checkpoint in any case.
          part: selects the part of the engine's snapshot that belongs to this run.
        """
        began = time.monotonic()
        if processes.call_in_first(lambda: force or began >= self._next_save):
            self._checkpoints.save(engine.played, part(engine.snapshot()), engine.kept())
            self._publish()
            now = time.monotonic()
            self._next_save = now + max(SAVE_SECONDS, (now - began) * (1 / SAVE_SHARE - 1))

    def finish(self, summary: dict, rows: list[dict]) -> dict:
        """Writes the plots and then summary.json; returns the summary."""
        self._checkpoints.wait()
        if processes.is_first():
            if "data" in summary:  # absent if an earlier version began the run
                summary["data"] |= {"fingerprint": fingerprint_of(self._fingerprint)}
            _draw(self.path, rows, titles.run_title(self._experiment.config))
            metric_rows.write_json(self.path / "summary.json", summary)
            self._publish()
        return summary

    def _publish(self):
        """Uploads new files of a folder in the cloud, after waiting for a pending checkpoint."""
        if processes.is_first() and cloud.is_remote(self.path):
            self._checkpoints.wait()
            cloud.publish(self.path)

    def close(self) -> None:
        """Waits for a pending checkpoint."""
        if self._checkpoints:
            self._checkpoints.close()


def times(path: Path | None, experiment: Experiment, engine: Engine) -> list[int]:
    """0, followed by the numbers of rounds after which the run is evaluated, ascending."""
    every = experiment.config.run.eval_every
    return processes.call_in_first(lambda: growth.evaluations(path, every, engine.ends))


def is_over(experiment: Experiment, engine: Engine, rows: list[dict]) -> bool:
    """Whether the run ends after the rounds played, given the metrics rows up to them."""
    whole = engine.played == experiment.simulation.plan.rounds
    return whole or bool(stopping.rule_met(experiment, rows))


def _draw(path, rows, title):
    """Draws the learning curve; an error of the drawing library becomes a warning."""
    picture = io.BytesIO()
    try:
        from fedjax_lab.running import plots

        plots.learning_curve(rows, title).savefig(picture, format="png", dpi=120)
    except MemoryError:
        raise
    except Exception as error:
        warn(f"the learning curve is not drawn, because of {reason_of(error)}")
        return
    metric_rows.make_folder(path / "plots")
    metric_rows.replace(path / "plots/learning_curve.png", picture.getvalue())


def remove_temporary(folder: Path) -> None:
    """Removes files that killed processes left unfinished. Only the folder's owner may call it."""
    for file in folder.glob("*.tmp"):
        if writing.is_temporary(file):
            file.unlink(missing_ok=True)
