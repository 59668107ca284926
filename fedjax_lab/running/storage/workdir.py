"""The folder of a run: which command may write to it, and its files in the order of writing.

config.json exists once a run has begun, summary.json once it has finished. Each file is written
under a temporary name and renamed after its content is on disk.
"""

import contextlib
import functools
import hashlib
import io
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
from fedjax_lab.experiment.config import sources_of
from fedjax_lab.experiment.experiment import Experiment, check_noise, ends_with
from fedjax_lab.experiment.stages import ends
from fedjax_lab.experiment.variants import check_rates
from fedjax_lab.running import growth, stopping
from fedjax_lab.running.storage import cloud, files, fingerprint, lock, metric_rows, provenance
from fedjax_lab.running.storage.checkpoint import Checkpoints, placed
from fedjax_lab.types import Stage

BEFORE = ("partition.png", "partition.csv", "error.txt", "fingerprint.json")
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
            processes.of_first(lambda: _take(until_the_end, path, config, seeds, resume))
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
    token = processes.of_first(lambda: path / f".seen-by-all-{os.urandom(4).hex()}.tmp")
    processes.of_first(token.touch)
    is_missing = processes.anywhere(not token.exists())
    processes.of_first(token.unlink)
    if is_missing:
        raise BadInput(
            f"{path} is not the same folder for all processes of the run: each process writes a"
            " part of each checkpoint, so the folder must be on a file system that all hosts share"
        )


def _check_content(path, config, seeds, resume):
    if not any(_of_a_run(file) for file in path.iterdir()):
        return
    if not resume:
        raise BadInput(f"{path} is not empty; use --resume to continue its run")
    growth.check_config(path, saved_config(config, seeds))


def _of_a_run(file):
    """Whether a run wrote the file; false for files allowed before a run and temporary files."""
    return not (file.name in BEFORE or file.name.startswith(".") or writing.is_temporary(file))


def saved_config(config, seeds: list[int]) -> dict:
    """The content of a run's config.json."""
    saved = {**config.to_dict(), "seeds": list(seeds)}
    sources = sources_of(config)
    return {**saved, provenance.SOURCES: sources} if sources else saved


# Files.


class Workdir:
    """The files of a run in a folder that is `owned`; without a path nothing is written.

    Only the first process reads and writes the files, and passes their content to the others.
    Checkpoints are the exception: all processes read and write them.
    """

    def __init__(self, path: Path | None, experiment: Experiment):
        """Raises BadInput if the folder holds a run on other data."""
        self.path = path
        self.saved = 0
        self._experiment = experiment
        self._evaluated = growth.Evaluated()
        self._checkpoints: Any = None  # None until `open` is called
        self._next_save = -np.inf
        self._writes = path is not None and processes.is_first()
        if path is not None:
            processes.of_first(self._check_data)
            self._evaluated = processes.of_first(lambda: growth.read_evaluated(path))

    def evaluations(self, engine: Engine) -> list[int]:
        """0, followed by the numbers of rounds after which the run is evaluated, ascending."""
        return growth.evaluations(
            self._experiment.config.run.eval_every, engine.ends, self._evaluated
        )

    def _file(self, name: str) -> Path:
        """The path of a file of the folder; only for a workdir that has a path."""
        assert self.path is not None
        return self.path / name

    def _check_data(self):
        self._fingerprint = fingerprint.of(self._experiment)
        file = self._file("fingerprint.json")
        if not self._file("config.json").exists():
            return
        if file.exists():
            saved = files.read_json(file, {"*": files.TEXT})
            fingerprint.check_same(saved, self._fingerprint, self.path)
        elif self._file("checkpoints").exists():
            raise BadInput(
                f"{self.path} has no {file.name}: an older version wrote the run, or the file is"
                " lost; it cannot be determined whether the data are the same, so start a new run"
                " in another folder"
            )

    def open(self) -> None:
        """Starts writing to the folder. Call this after all checks of the run have passed."""
        if self.path is not None:
            processes.of_first(self._open)
            self._checkpoints = Checkpoints(self._file("checkpoints"))

    def _open(self):
        for folder in (self.path, self._file("stages"), self._file("plots")):
            remove_temporary(folder)
        if not self._file("config.json").exists():  # else the files have the same content
            metric_rows.write_json(self._file("fingerprint.json"), self._fingerprint)
            metric_rows.write_json(self._file("config.json"), self._config())
            cloud.publish(self.path)

    def _config(self):
        """The content of config.json for this experiment."""
        return saved_config(self._experiment.config, self._experiment.simulation.seeds)

    def restore(self, engine: Engine) -> list[dict]:
        """Restores the newest intact checkpoint into the engine; returns the metrics rows up to it.

        Afterward the folder has the experiment's config and no data from later rounds.

        Args:
          engine: a new engine, which has not played any round.

        Raises:
          BadInput: a required file is damaged or lost, or the run cannot be resumed with this
            number of rounds. In this case no file has been changed.
        """
        if (path := self.path) is None:
            return []
        run = processes.of_first(lambda: growth.read_config(path)["run"])
        until_now = ends_with(self._experiment, run["rounds"])
        made = growth.evaluations(run["eval_every"], [*until_now.values()], self._evaluated)
        rows = self._restore(engine, made[1:], until_now)
        self._cut_to_saved(rows)
        processes.of_first(lambda: self._adopt(made, engine))
        self._evaluated = processes.of_first(lambda: growth.read_evaluated(path))
        self._publish()
        return rows

    def look(self, engine: Engine, rounds: int | None = None) -> list[dict]:
        """Like `restore`, but read-only, so that the caller need not own the folder.

        rounds: the number of rounds of the checkpoint to read; None: the newest checkpoint.
        Raises BadInput if there is no such checkpoint.
        """
        folder = self._file("checkpoints")
        if not folder.is_dir():
            raise BadInput(f"{self.path} has no checkpoint yet")
        self._checkpoints = Checkpoints(folder, read_only=True)
        stages = ends(self._experiment.simulation.stages)
        try:
            self._check_saved(self._checkpoints.numbers(), rounds)
            return self._restore(engine, self.evaluations(engine)[1:], stages, rounds)
        finally:
            self._checkpoints.close()
            self._checkpoints = None

    def _check_host(self):
        """Raises BadInput if the checkpoint and this run keep clients' state in different places.

        The place is either host memory (or disk) or the devices.
        """
        saved_on_host = self._file(f"kept/{self.saved}").exists()
        if saved_on_host != (self._experiment.simulation.host is not None):
            remedy = (
                "config.engine.state=host or disk"
                if saved_on_host
                else "config.engine.state=replicated or sharded, and config.engine.data not stream"
            )
            raise BadInput(
                f"{self.path} holds a run that keeps its clients' state on the"
                f" {'host' if saved_on_host else 'devices'}; resume it with {remedy}"
            )

    def _check_saved(self, numbers, rounds):
        if not numbers:
            raise BadInput(f"{self.path} has no checkpoint yet")
        if rounds is not None and rounds not in numbers:
            raise BadInput(
                f"{self.path} has no checkpoint after {rounds} rounds, only after"
                f" {' and '.join(map(str, sorted(numbers)))}"
            )

    def _restore(self, engine, evaluations, until_now, rounds=None):
        """Restores a checkpoint into the engine; returns the metrics rows up to it.

        evaluations, until_now: the evaluations and the ends of the stages that the config saved
        in the folder implies. rounds: the checkpoint to restore; None: the newest.
        """
        rows = processes.of_first(lambda: self._verified(evaluations))
        sharding = self._experiment.simulation.strategy.sharding
        self.saved, leaves = self._checkpoints.newest(sharding, rounds)
        rows = self._until_saved(rows, evaluations)
        today = ends(self._experiment.simulation.stages)
        growth.check_rounds(self.path, until_now, today, self.saved)
        old, new = (np.diff([0, *each.values()]).tolist() for each in (until_now, today))
        check_rates(self._experiment.config, old, new, self.saved)
        check_noise(self._experiment, sum(old), sum(new), self.saved)
        while self.saved > engine.ends[engine.stage_number]:
            stage = engine.simulation.stages[engine.stage_number + 1]
            engine.next_stage(self.read_facts(stage, len(engine.lanes)))
        if self.saved:
            processes.of_first(self._check_host)
            like, treedef = jax.tree.flatten(engine.snapshot())
            leaves = self._of_this_run(placed, leaves, like)
            engine.go_on(jax.tree.unflatten(treedef, leaves), self.saved)
            self._of_this_run(self._checkpoints.load, self.saved, engine.kept())
        return rows

    def _expected(self, evaluations):
        seeds = self._experiment.simulation.seeds
        return [(rounds, seed) for rounds in evaluations for seed in seeds]

    def _verified(self, evaluations):
        return metric_rows.verified(self._file("metrics.jsonl"), self._expected(evaluations))

    def _until_saved(self, rows, evaluations):
        expected = self._expected(evaluations)
        needed = sum(rounds <= self.saved for rounds, _ in expected)
        if len(rows) < needed:
            raise BadInput(
                f"{self._file('metrics.jsonl')} lacks round {expected[len(rows)][0]}, which"
                f" checkpoint {self.saved} has; delete the folder checkpoints to restart the run"
                " from round 1"
            )
        return rows[:needed]

    def _of_this_run(self, read, *args):
        try:
            return read(*args)
        except (BadInput, ValueError) as error:
            raise BadInput(
                f"checkpoint {self.saved} of {self.path} belongs to another run: {error}"
            ) from error

    def _cut_to_saved(self, rows):
        """Removes the files and rows that the run is going to write again."""
        if not self._is_over(rows):
            processes.of_first(lambda: self._file("summary.json").unlink(missing_ok=True))
        self._checkpoints.forget_after(self.saved)
        processes.of_first(lambda: metric_rows.keep_until(self._file("metrics.jsonl"), self.saved))

    def _adopt(self, evaluations, engine):
        """Writes the config of the resumed run if it differs from the saved config."""
        config, saved = self._config(), growth.read_config(self.path)
        total = self._experiment.simulation.plan.rounds
        is_longer = saved["run"]["rounds"] != config["run"]["rounds"]
        if not growth.differ(saved, config) or (self.saved == total and not is_longer):
            return
        made = tuple(after for after in evaluations[1:] if after <= self.saved)
        if [0, *made] != [after for after in self.evaluations(engine) if after <= self.saved]:
            growth.write_evaluated(self.path, growth.Evaluated(self.saved, made))
        self._file("summary.json").unlink(missing_ok=True)
        metric_rows.write_json(self._file("config.json"), config)

    def _is_over(self, rows):
        """Whether the run ends at its newest checkpoint, given the metrics rows up to it."""
        whole = self.saved == self._experiment.simulation.plan.rounds
        return whole or bool(stopping.rule_met(self._experiment, rows))

    def finished(self, rows: list[dict]) -> bool:
        """Whether an earlier process has finished the run; rows: all its metrics rows."""
        if self.path is None or not self._is_over(rows):
            return False
        return processes.of_first(self._file("summary.json").exists)

    def read_summary(self) -> dict:
        """Reads the summary of a run that an earlier process has finished."""
        path = self._file("summary.json")
        return processes.of_first(lambda: files.read_json(path, files.FINISHED))

    def keep_facts(self, facts: list[dict], engine: Engine) -> None:
        """Writes the facts that a stage begins with, because they cannot be recomputed later."""
        if not self._writes or engine.stage.prepare is None:
            return
        metric_rows.make_folder(self._file("stages"))
        for i, arrays in enumerate(facts):
            write_arrays(self._facts_file(engine.stage, i), arrays)

    def read_facts(self, stage: Stage, lanes: int) -> list[dict]:
        """The facts that a stage of the run began with, for each lane.

        Raises BadInput if a file is damaged or lost.
        """
        if stage.prepare is None:
            return [{} for _ in range(lanes)]
        return processes.of_first(
            lambda: [read_arrays(self._facts_file(stage, i)) for i in range(lanes)]
        )

    def _facts_file(self, stage, lane):
        return self._file(f"stages/{stage.name}-{lane}.npz")

    def append(self, rows: list[dict]) -> None:
        """Adds rows to metrics.jsonl."""
        if self._writes:
            metric_rows.append(self._file("metrics.jsonl"), rows)

    def save(self, engine: Engine, force: bool, part: Callable = lambda whole: whole) -> None:
        """Saves a checkpoint of `part` of the snapshot, unless the last one is only seconds old.

        Checkpoints that take long are saved less often, see `SAVE_SHARE`.

        Args:
          engine: the engine whose state is saved.
          force: whether to save a checkpoint in any case.
          part: selects the part of the engine's snapshot that belongs to this run.
        """
        if self._checkpoints is None:
            return
        began = time.monotonic()
        if processes.of_first(lambda: force or began >= self._next_save):
            self._checkpoints.save(engine.played, part(engine.snapshot()), engine.kept())
            self._publish()
            now = time.monotonic()
            pause = max(SAVE_SECONDS, (now - began) * (1 / SAVE_SHARE - 1))
            self.saved, self._next_save = engine.played, now + pause

    def finish(self, summarize: Callable[[Experiment, list[dict]], dict], rows, **more) -> dict:
        """Writes the plots and then summary.json; returns the summary."""
        summary = {**summarize(self._experiment, rows), **more}
        if self._writes and "data" in summary:  # absent if an earlier version began the run
            summary["data"] |= {"fingerprint": fingerprint_of(self._fingerprint)}
        if self._checkpoints:
            self._checkpoints.wait()
        if self._writes:
            self._draw(rows)
            metric_rows.write_json(self._file("summary.json"), summary)
            self._publish()
        return summary

    def _draw(self, rows):
        """Draws the learning curve; an error of the drawing library becomes a warning."""
        picture = io.BytesIO()
        try:
            from fedjax_lab.running import plots

            curve = plots.learning_curve(rows, self._experiment.config.method.name)
            curve.savefig(picture, format="png", dpi=120)
        except MemoryError:
            raise
        except Exception as error:
            warn(f"the learning curve is not drawn, because of {reason_of(error)}")
            return
        metric_rows.make_folder(self._file("plots"))
        metric_rows.replace(self._file("plots/learning_curve.png"), picture.getvalue())

    def _publish(self):
        """Uploads new files of a folder in the cloud, after waiting for a pending checkpoint."""
        if self._writes and cloud.is_remote(self.path):
            self._checkpoints.wait()
            cloud.publish(self.path)

    def close(self) -> None:
        """Waits for a pending checkpoint."""
        if self._checkpoints:
            self._checkpoints.close()


def remove_temporary(folder: Path) -> None:
    """Removes files that killed processes left unfinished. Only the folder's owner may call it."""
    for file in folder.glob("*.tmp"):
        if writing.is_temporary(file):
            file.unlink(missing_ok=True)


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Writes arrays to an .npz file, and its checksum to a second file in sha256sum's format."""
    content = io.BytesIO()
    np.savez(content, **arrays)
    metric_rows.replace(path, content.getvalue())
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    metric_rows.write_text(_checksum_of(path), f"{digest}  {path.name}\n")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads a file written by `write_arrays`. Raises BadInput if it is damaged or lost."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != _checksum_of(path).read_text().split()[0]:
            raise ValueError("its checksum does not match")
    except (OSError, ValueError, IndexError) as error:
        reason = f"is damaged or lost, and its stage needs it to resume: {error}"
        raise BadInput(f"{path} {reason}") from error
    return dict(np.load(io.BytesIO(content)))


def _checksum_of(path):
    return path.with_name(f"{path.name}.sha256")


class Workdirs:
    """The workdirs of a joint run; each one receives the rows and states of its own seeds."""

    def __init__(self, folders: list[Workdir], counts: list[int]):
        self._folders = folders
        ends = np.cumsum(counts)
        self._spans = [slice(end - n, end) for end, n in zip(ends, counts, strict=True)]
        self._rows: list[list[dict]] = [[] for _ in folders]

    def open(self) -> None:
        """Starts writing to all folders."""
        for folder in self._folders:
            folder.open()

    def evaluations(self, engine: Engine) -> list[int]:
        """0, followed by the numbers of rounds after which the runs are evaluated, ascending."""
        return self._folders[0].evaluations(engine)

    def append(self, new: list[dict]) -> None:
        """Adds the rows of one evaluation, one row for each seed."""
        for folder, span, rows in zip(self._folders, self._spans, self._rows, strict=True):
            rows += new[span]
            folder.append(new[span])

    def save(self, engine: Engine, force: bool) -> None:
        """Saves a checkpoint for each run, identical to that of the run executed alone."""
        for folder, span in zip(self._folders, self._spans, strict=True):
            folder.save(engine, force, functools.partial(_part, span))

    def finish(self, summarize: Callable, rows, diverged: dict | None = None) -> list[dict]:
        """Writes plots and summaries and returns the summaries; [] if a run has diverged."""
        if diverged is not None:
            return []
        return [
            folder.finish(summarize, rows_of_run, runs_together=len(self._folders))
            for folder, rows_of_run in zip(self._folders, self._rows, strict=True)
        ]

    def close(self) -> None:
        """Waits for pending checkpoints."""
        for folder in self._folders:
            folder.close()


def _part(span, snapshot):
    """The part of a joint run's snapshot that belongs to one of its runs."""
    of_run = span if span.stop - span.start > 1 else span.start
    states, sums = jax.tree.map(lambda a: a[of_run], (snapshot.states, snapshot.sums))
    return snapshot._replace(states=states, sums=sums, bytes=snapshot.bytes[span])
