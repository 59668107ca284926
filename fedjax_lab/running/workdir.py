"""The folder of a run: who may write in it, and its files in the order in which they are written.

config.json marks that a run has begun, summary.json that it has come to its end. Whatever a file
says is already on the disk when the file gets its name.
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

from fedjax_lab import processes
from fedjax_lab.config import sources_of
from fedjax_lab.data.dataset import fingerprint_of
from fedjax_lab.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import Experiment, check_noise, check_rates, ends, ends_with
from fedjax_lab.running import (
    cloud,
    files,
    fingerprint,
    growth,
    lock,
    merging,
    metrics,
    provenance,
    stopping,
)
from fedjax_lab.running.checkpoint import Checkpoints, placed
from fedjax_lab.types import Stage

BEFORE = ("partition.png", "partition.csv", "error.txt", "fingerprint.json", growth.EVALUATED)
# files that may be there before a run begins
SAVE_SECONDS = 5.0  # at least so long between two checkpoints
SAVE_SHARE = 0.1  # of a run's time that checkpoints may take


# Who may write in it.


@contextlib.contextmanager
def owned(path: Path | None, config, seeds: list[int], resume: bool) -> Iterator[None]:
    """Makes this run the only one of its folder, as long as the context lasts.

    The folder is made for that; if nothing has been written to it at the end, it is removed. Of
    several processes of one run the first one is the owner. The owner may ask again.

    Raises:
      BadInput: another command runs there, the folder holds another run or one that was not asked
        to be resumed, nothing can be written there, or not all processes see the same folder.
    """
    with contextlib.ExitStack() as until_the_end:
        if path is not None:
            processes.of_first(lambda: _take(until_the_end, path, config, seeds, resume))
            _check_shared(path)
        yield


def _take(until_the_end, path, config, seeds, resume):
    until_the_end.enter_context(lock.owned(path))
    merging.settle(path)
    _check_content(path, config, seeds, resume)


def _check_shared(path):
    """BadInput unless every process sees what the first one writes there."""
    if not jax.distributed.is_initialized():
        return
    if cloud.is_remote(path):
        raise BadInput(
            f"{path} cannot hold a run of several processes, each of which writes its share of a"
            " checkpoint: mount it as a folder that their hosts share, and name that"
        )
    token = processes.of_first(lambda: path / f".seen-by-all-{os.urandom(4).hex()}.tmp")
    processes.of_first(token.touch)
    is_missing = processes.anywhere(not token.exists())
    processes.of_first(token.unlink)
    if is_missing:
        raise BadInput(
            f"{path} is not the same folder for all processes of the run: each one writes its share"
            " of a checkpoint there, so it has to be on a file system that their hosts share"
        )


def _check_content(path, config, seeds, resume):
    if not any(_of_a_run(file) for file in path.iterdir()):
        return
    if not resume:
        raise BadInput(f"{path} is not empty; use --resume to go on with its run")
    growth.check_config(path, saved_config(config, seeds))


def _of_a_run(file):
    """Whether the file is more than what may be there before a run, or after one was killed."""
    return not (file.name in BEFORE or file.name.startswith(".") or metrics.is_temporary(file))


def saved_config(config, seeds: list[int]) -> dict:
    """The content of a run's config.json."""
    saved = {**config.to_dict(), "seeds": list(seeds)}
    sources = sources_of(config)
    return {**saved, provenance.SOURCES: sources} if sources else saved


# Its files.


class Workdir:
    """A folder that is `owned`, and its files; without a path nothing is written.

    The first process alone reads and writes them, and tells the others what it has read;
    checkpoints alone are read and written by all.
    """

    def __init__(self, path: Path | None, experiment: Experiment):
        """BadInput where the folder holds a run on other data."""
        self.path = path
        self.saved = 0
        self._experiment = experiment
        self._evaluated = growth.Evaluated()
        self._checkpoints: Any = None  # until `open`
        self._next_save = -np.inf
        self._writes = path is not None and processes.is_first()
        if path is not None:
            processes.of_first(self._check_data)
            self._evaluated = processes.of_first(lambda: growth.read_evaluated(path))

    def evaluations(self, engine: Engine) -> list[int]:
        """0, then after how many rounds of the run there is an evaluation, ascending."""
        return growth.evaluations(
            self._experiment.config.run.eval_every, engine.ends, self._evaluated
        )

    def _file(self, name: str) -> Path:
        """A file of the folder, for those who read or write in it."""
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
                f"{self.path} has no {file.name}: it is of an older version, or the file is lost,"
                " and nobody can tell whether the data are the same; start the run anew in another"
                " folder"
            )

    def open(self) -> None:
        """Begins to write, once nothing is wrong with the run that the folder is for."""
        if self.path is not None:
            processes.of_first(self._open)
            self._checkpoints = Checkpoints(self._file("checkpoints"))

    def _open(self):
        cloud.take(self.path)
        for folder in (self.path, self._file("stages"), self._file("plots")):
            remove_temporary(folder)
        if not self._file("config.json").exists():  # else both are the same
            metrics.write_json(self._file("fingerprint.json"), self._fingerprint)
            metrics.write_json(self._file("config.json"), self._config())
            cloud.publish(self.path)

    def _config(self):
        """The content of config.json by the experiment."""
        return saved_config(self._experiment.config, self._experiment.simulation.seeds)

    def restore(self, engine: Engine) -> list[dict]:
        """Puts the engine where the newest whole checkpoint was; returns the rows until there.

        From here on the folder is that of a run with the experiment's config.

        Args:
          engine: one that has just been made.

        Raises:
          BadInput: what is needed is damaged or lost, or the run cannot go on with another number
            of rounds. Nothing has been changed then.
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
        """The same without being the folder's owner: nothing in it is changed.

        rounds: of the checkpoint to take; None: the newest. BadInput where there is none.
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
        """BadInput where a checkpoint has on the host what this run keeps on devices, or not so."""
        there = self._file(f"kept/{self.saved}").exists()
        here = self._experiment.simulation.host is not None
        if there != here:
            keys = "state=host or disk" if there else "state=replicated or sharded, data not stream"
            raise BadInput(
                f"{self.path} holds a run that keeps its clients' state on the"
                f" {'host' if there else 'devices'}; go on with config.engine: {keys}"
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
        """evaluations, until_now: those and the ends of stages by the config of the rows there."""
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
        return metrics.verified(self._file("metrics.jsonl"), self._expected(evaluations))

    def _until_saved(self, rows, evaluations):
        expected = self._expected(evaluations)
        needed = sum(rounds <= self.saved for rounds, _ in expected)
        if len(rows) < needed:
            raise BadInput(
                f"{self._file('metrics.jsonl')} lacks round {expected[len(rows)][0]}, which"
                f" checkpoint {self.saved} has; without the folder checkpoints the run starts anew"
            )
        return rows[:needed]

    def _of_this_run(self, read, *args):
        try:
            return read(*args)
        except (BadInput, ValueError) as error:
            raise BadInput(
                f"checkpoint {self.saved} of {self.path} is another run's: {error}"
            ) from error

    def _cut_to_saved(self, rows):
        """Removes what the run is going to write again."""
        if not self._is_over(rows):
            processes.of_first(lambda: self._file("summary.json").unlink(missing_ok=True))
        self._checkpoints.forget_after(self.saved)
        processes.of_first(lambda: metrics.keep_until(self._file("metrics.jsonl"), self.saved))

    def _adopt(self, evaluations, engine):
        """Writes the config with which the run goes on, if it is another than until now."""
        config, saved = self._config(), growth.read_config(self.path)
        total = self._experiment.simulation.plan.rounds
        is_longer = saved["run"]["rounds"] != config["run"]["rounds"]
        if not growth.differ(saved, config) or (self.saved == total and not is_longer):
            return
        made = tuple(after for after in evaluations[1:] if after <= self.saved)
        if [0, *made] != [after for after in self.evaluations(engine) if after <= self.saved]:
            growth.write_evaluated(self.path, growth.Evaluated(self.saved, made))
        self._file("summary.json").unlink(missing_ok=True)
        metrics.write_json(self._file("config.json"), config)

    def _is_over(self, rows):
        """Whether no round is to be played after the saved ones, with these evaluations."""
        whole = self.saved == self._experiment.simulation.plan.rounds
        return whole or bool(stopping.rule_met(self._experiment, rows))

    def finished(self, rows: list[dict]) -> bool:
        """Whether an earlier process, with these evaluations, has left nothing to do."""
        if self.path is None or not self._is_over(rows):
            return False
        return processes.of_first(self._file("summary.json").exists)

    def read_summary(self) -> dict:
        """The summary of a run that an earlier process has finished."""
        path = self._file("summary.json")
        return processes.of_first(lambda: files.read_json(path, files.FINISHED))

    def keep_facts(self, facts: list[dict], engine: Engine) -> None:
        """Writes the facts with which a stage begins, which a later process cannot recompute."""
        if not self._writes or engine.stage.prepare is None:
            return
        metrics.make_folder(self._file("stages"))
        for i, arrays in enumerate(facts):
            write_arrays(self._facts_file(engine.stage, i), arrays)

    def read_facts(self, stage: Stage, lanes: int) -> list[dict]:
        """The facts with which a stage of the run has begun, of each lane. Raises BadInput."""
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
            metrics.append(self._file("metrics.jsonl"), rows)

    def save(self, engine: Engine, force: bool, part: Callable = lambda whole: whole) -> None:
        """Saves a checkpoint of `part` of the snapshot, unless the last one is only seconds old.

        What takes long is done less often (`SAVE_SHARE`).
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
        """Writes the plots and then summary.json, which it returns."""
        summary = {**summarize(self._experiment, rows), **more}
        if self._writes and "data" in summary:  # not of a run that an earlier version began
            summary["data"] |= {"fingerprint": fingerprint_of(self._fingerprint)}
        if self._checkpoints:
            self._checkpoints.wait()
        if self._writes:
            from fedjax_lab.analysis import plots

            picture = io.BytesIO()
            curve = plots.learning_curve(rows, self._experiment.config.method.name)
            curve.savefig(picture, format="png", dpi=120)
            metrics.make_folder(self._file("plots"))
            metrics.replace(self._file("plots/learning_curve.png"), picture.getvalue())
            metrics.write_json(self._file("summary.json"), summary)
            self._publish()
        return summary

    def _publish(self):
        """Uploads what is new in a folder in the cloud, with the checkpoint that is being saved."""
        if self._writes and cloud.is_remote(self.path):
            self._checkpoints.wait()
            cloud.check_owner(self.path)
            cloud.publish(self.path)

    def close(self) -> None:
        """Waits for a checkpoint that is being written."""
        if self._checkpoints:
            self._checkpoints.close()
        if self.path is not None and self._writes:
            cloud.release(self.path)


def remove_temporary(folder: Path) -> None:
    """Removes what processes that were killed left half written. For the folder's owner."""
    for file in folder.glob("*.tmp"):
        if metrics.is_temporary(file):
            file.unlink(missing_ok=True)


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Writes arrays to an .npz file, and beside it its checksum in the format of sha256sum."""
    content = io.BytesIO()
    np.savez(content, **arrays)
    metrics.replace(path, content.getvalue())
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    metrics.write_text(_checksum_of(path), f"{digest}  {path.name}\n")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads the file of `write_arrays`. BadInput where it is damaged or lost."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != _checksum_of(path).read_text().split()[0]:
            raise ValueError("its checksum does not match")
    except (OSError, ValueError, IndexError) as error:
        raise BadInput(f"{path} lacks what a stage began with: {error}") from error
    return dict(np.load(io.BytesIO(content)))


def _checksum_of(path):
    return path.with_name(f"{path.name}.sha256")


class Workdirs:
    """The workdirs of a joint run: each one takes the rows and states of its seeds."""

    def __init__(self, folders: list[Workdir], counts: list[int]):
        self._folders = folders
        ends = np.cumsum(counts)
        self._spans = [slice(end - n, end) for end, n in zip(ends, counts, strict=True)]
        self._rows: list[list[dict]] = [[] for _ in folders]

    def open(self) -> None:
        """Begins to write in all of them."""
        for folder in self._folders:
            folder.open()

    def evaluations(self, engine: Engine) -> list[int]:
        """0, then after how many rounds all of these runs are evaluated."""
        return self._folders[0].evaluations(engine)

    def append(self, new: list[dict]) -> None:
        """Adds the rows of one evaluation, one of each seed."""
        for folder, span, rows in zip(self._folders, self._spans, self._rows, strict=True):
            rows += new[span]
            folder.append(new[span])

    def save(self, engine: Engine, force: bool) -> None:
        """Checkpoints, each as the run alone would save it."""
        for folder, span in zip(self._folders, self._spans, strict=True):
            folder.save(engine, force, functools.partial(_part, span))

    def finish(self, summarize: Callable, rows, diverged: dict | None = None) -> list[dict]:
        """Writes summaries, which it returns, and plots; nothing where a run has diverged."""
        if diverged is not None:
            return []
        return [
            folder.finish(summarize, rows_of_run, runs_together=len(self._folders))
            for folder, rows_of_run in zip(self._folders, self._rows, strict=True)
        ]

    def close(self) -> None:
        """Waits for checkpoints that are being written."""
        for folder in self._folders:
            folder.close()


def _part(span, snapshot):
    """The part of a joint run's snapshot that one of its runs would save alone."""
    of_run = span if span.stop - span.start > 1 else span.start
    states, sums = jax.tree.map(lambda a: a[of_run], (snapshot.states, snapshot.sums))
    return snapshot._replace(states=states, sums=sums, bytes=snapshot.bytes[span])
