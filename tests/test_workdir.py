"""A run's folder: a resume needs undamaged files, the same data, and no other process on it."""

import errno
import fcntl
import json
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import toys
from commands import call, comparable, contents, refusal
from inputs import complaint
from processes_beside import another_process
from slow_cases import exhaustive_but

import fedjax_lab
from fedjax_lab.commands import sweep
from fedjax_lab.data import cache, lazy
from fedjax_lab.data.dataset import fingerprint_of
from fedjax_lab.engine.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.models.embeddings import Embeddings
from fedjax_lab.running import workdir
from fedjax_lab.running.storage import fingerprint, lock, metric_rows
from fedjax_lab.sweeping import sweep_folder
from fedjax_lab.types import Rows

RUN = {"rounds": 8, "eval_every": 3, "cohort": 3}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with data, their config, and a run of two seeds with checkpoints 6 and 8."""
    folder = tmp_path_factory.mktemp("finished")
    toys.write_config(folder, run=RUN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workdir, "SAVE_SECONDS", 0)
        patch.setattr(workdir, "SAVE_SHARE", 1)
        assert call(*arguments(folder)) == 0
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of `finished`."""
    folder = shutil.copytree(finished, tmp_path / "copy")
    toys.write_config(folder, run=RUN)
    settings = (folder / "run/config.json").read_text()
    (folder / "run/config.json").write_text(settings.replace(str(finished), str(folder)))
    return folder


def arguments(folder):
    return [f"--config={folder / 'toy.py'}", f"--workdir={folder / 'run'}", "--seeds=0,1"]


def rejected(folder, capsys, *more):
    """The error message of a command that must not change any file."""
    before = contents(folder)
    error = refusal(capsys, *arguments(folder), *more)
    assert contents(folder) == before
    return error


# Changed data.


@pytest.mark.slow
@pytest.mark.parametrize(
    "change, what",
    [
        (lambda x, y: {"x": 2 * x, "y": y}, "examples"),
        (lambda x, y: {"x": x[:-3], "y": y[:-3]}, "examples, labels, domains, test flags, part"),
    ],
)
def test_changed_data_are_rejected_even_for_a_finished_run(change, what, run, capsys):
    np.savez(run / "data.npz", **change(**np.load(run / "data.npz")))
    error = rejected(run, capsys, "--resume")
    assert f"have changed since it began: {what}" in error
    shutil.rmtree(run / "run/checkpoints/8")
    assert what in rejected(run, capsys, "--resume")


@pytest.mark.slow
def test_a_run_with_a_damaged_file_or_without_a_fingerprint_is_rejected(run, capsys):
    for name, text, said in (
        ("config.json", "", "config.json cannot be used: it is empty"),
        ("config.json", "[]", "config.json cannot be used: it must be a JSON object, not []"),
        ("summary.json", '{"rounds": 2', "summary.json cannot be used: it is truncated or not"),
        ("summary.json", "{}", "summary.json cannot be used: it lacks compile_seconds"),
        ("fingerprint.json", "{", "fingerprint.json cannot be used"),
    ):
        file = run / "run" / name
        whole = file.read_text()
        file.write_text(text)
        assert said in rejected(run, capsys, "--resume")
        file.write_text(whole)
    (run / "run/fingerprint.json").unlink()
    assert "start a new run in another folder" in rejected(run, capsys, "--resume")


@pytest.mark.slow
def test_the_fingerprint_includes_embeddings_and_users_if_there_are_any(run):
    job = experiment.build(resolve(load_config(str(run / "toy.py"))), [0])
    plain, embedded, of_users = fingerprint.compute(job), [], []
    for value in (0, 1):
        made = Embeddings(np.full((300, 4), value, np.float32), np.zeros((3, 4), np.float32))
        stage = job.simulation.stages[0]._replace(embeddings=lambda m=made: m)
        embedded.append(fingerprint.compute(toys.changed(job, stages=(stage,))))
        client = np.arange(value, len(job.dataset.y) + value, dtype=np.int32) % 2
        data = job.dataset._replace(client=client, users=("ann", "bob"))
        of_users.append(fingerprint.compute(job._replace(dataset=data)))
    assert {name: embedded[0][name] for name in plain} == plain
    message = complaint(fingerprint.check_same, *embedded, run)
    assert "began: embeddings; they differ by rounding " in message and " CPU cores;" in message
    assert len({fingerprint_of(each) for each in (plain, *of_users)}) == 3
    assert "began: users; restore them," in complaint(fingerprint.check_same, *of_users, run)
    fingerprint.check_same(plain, of_users[0], run)  # a folder whose fingerprint lacks users


def test_the_fingerprint_is_computed_without_a_table_of_all_clients(run, monkeypatch):
    """Padded to the largest client, the table may be far larger than the examples."""
    job = experiment.build(resolve(load_config(str(run / "toy.py"))), [0])
    federation = job.simulation.seeds[0].federation
    parts = {"train": federation.train, "test": federation.test, "world": federation.global_test}
    whole = cache.checksum({name: np.asarray(rows) for name, rows in parts.items()})
    monkeypatch.setattr(lazy, "PIECE", 500)
    monkeypatch.delattr(Rows, "__array__")
    assert fingerprint.compute(job)["partition of seed 0"] == whole


# Damaged files.


def lines_of(run):
    return (run / "run/metrics.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change, message",
    [
        (lambda lines: [lines[0], lines[1][:9] + b"\n", *lines[2:]], "cannot be used: line 2: "),
        (lambda lines: [*lines[:2], *lines], "row 3 is of round 3 and seed 0, which"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "row 1 is of round 3 and seed 1, which"),
        (lambda lines: [*lines[:2], *lines[3:]], "row 3 is of round 6 and seed 1, which"),
        (lambda lines: [], "lacks round 3, which checkpoint 8 has"),
    ],
)
def test_damaged_metrics_are_rejected_and_not_changed(change, message, run, capsys):
    (run / "run/metrics.jsonl").write_bytes(b"".join(change(lines_of(run))))
    assert message in rejected(run, capsys, "--resume")
    shutil.rmtree(run / "run/checkpoints/8")
    assert message.replace("checkpoint 8", "checkpoint 6") in rejected(run, capsys, "--resume")


@pytest.mark.slow
def test_a_run_resumes_from_its_checkpoint_and_keeps_the_earlier_rows(run, finished):
    """This holds even if a kill has truncated the last line."""
    before = lines_of(run)
    shutil.rmtree(run / "run/checkpoints/8")
    with (run / "run/metrics.jsonl").open("ab") as file:
        file.truncate(file.tell() - 30)
    assert call(*arguments(run), "--resume") == 0
    assert lines_of(run)[:4] == before[:4]
    assert comparable(run / "run") == comparable(finished / "run")


def test_a_run_of_an_earlier_version_resumes(run):
    """Its config.json has a value under its earlier name, lacks new keys, and is not changed."""
    saved = json.loads((run / "run/config.json").read_text())
    saved["engine"]["seeds"], saved["method"] = "vectorised", {"name": "fedprox"}
    del saved["engine"]["dtype"], saved["engine"]["precision"], saved["run"]["metrics"]
    (run / "run/config.json").write_text(json.dumps(saved))

    def resume(*overrides):
        config = resolve(
            load_config(f"{run / 'toy.py'}:fedprox"), [("engine.seeds", "vectorized"), *overrides]
        )
        with workdir.owned(run / "run", config, [0, 1], resume=True):
            pass

    resume()
    resume(("engine.seeds", "vectorised"))
    assert json.loads((run / "run/config.json").read_text()) == saved
    for key, value in (("seeds", "auto"), ("dtype", "bfloat16"), ("precision", "highest")):
        message = complaint(resume, (f"engine.{key}", value))
        assert f"config.engine.{key} is " in message and f", not '{value}'" in message
    assert "config.method.mu is 0.01, not 7.0" in complaint(resume, ("method.mu", "7"))


# Kills at other moments.


@pytest.mark.slow
def test_a_folder_of_a_run_killed_before_it_began_can_be_used(run):
    """A new run and --resume both begin the run there, and remove partly written files."""
    for more in ([], ["--resume"]):
        shutil.rmtree(run / "run")
        (run / "run").mkdir()
        for name in ("config.json.0123abcd.tmp", "fingerprint.json.0123abcd.tmp", ".lock"):
            (run / "run" / name).touch()
        (run / "run/fingerprint.json").write_text("{}")
        assert call(*arguments(run), *more) == 0
        assert not list((run / "run").glob("*.tmp"))
    (run / "run/thesis.tmp").touch()
    assert call(*arguments(run), "--resume") == 0
    assert (run / "run/thesis.tmp").exists()  # not a file of the run


@pytest.mark.parametrize(
    "file", exhaustive_but(["summary.json"], ["learning_curve.png", "summary.json"])
)
def test_a_kill_while_the_last_files_are_written_leaves_an_unfinished_run(
    file, run, monkeypatch, capsys
):
    """So does a kill of a resumed run whose newest checkpoint is lost."""
    whole = metric_rows.replace

    def killed(path, data):
        if path.name == file:
            raise MemoryError
        whole(path, data)

    shutil.rmtree(run / "run/checkpoints/8")
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "play", lambda *_: killed(Path(file), b""))
        assert call(*arguments(run), "--resume") == 1
        assert sweep_folder.ended(run / "run") is None
        assert [row["round"] for row in comparable(run / "run")] == [3, 3, 6, 6]
    with monkeypatch.context() as patch:
        patch.setattr(metric_rows, "replace", killed)
        assert call(*arguments(run), "--resume") == 1
    assert f"--workdir={run / 'run'} --resume" in capsys.readouterr().err
    assert not (run / "run/summary.json").exists()
    assert sorted(path.name for path in (run / "run/checkpoints").iterdir())[-1] == "8"
    assert call(*arguments(run), "--resume") == 0
    assert (run / "run/plots/learning_curve.png").stat().st_size > 5000
    assert json.loads((run / "run/summary.json").read_text())["rounds"] == 8


# Locks.


def begun(*_):
    pytest.fail("data were loaded, or a run began to be built")


def test_a_second_command_on_a_folder_is_rejected_at_once(run, tmp_path, capsys, monkeypatch):
    new = tmp_path / "new"
    new.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "load_data", begun)
        patch.setattr(experiment, "build", begun)
        with another_process(run / "run/.lock"), another_process(new / ".lock"):
            assert "is in use" in rejected(run, capsys, "--resume")
            assert "is in use" in rejected(run, capsys)
            settings = {"workdir": run / "run", "seeds": [0, 1], "resume": True}
            config = load_config(str(run / "toy.py"))
            assert "is in use" in complaint(fedjax_lab.run, config, **settings)
            assert call(f"--config={run / 'toy.py'}", f"--workdir={new}") == 2
    assert call(*arguments(run), "--resume") == 0


def test_a_sweep_and_a_run_exclude_each_other(run, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    command = [f"--config={run / 'toy.py'}", f"--out={out}", "--methods=fedavg,fedprox"]
    monkeypatch.setattr(experiment, "load_data", begun)

    def sweep_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with another_process(path):
            assert sweep.main(["sweep", *command]) == 2
            assert not {file.name for file in contents(out) if file.name[0] != "."} - {"sweep.json"}
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    assert f"{out} is in use" in sweep_error(out / ".share-0-of-1.lock")
    assert f"{out} is in use" in sweep_error(out / ".share-1-of-3.lock")
    metric_rows.write_json(out / "sweep.json", {"cells": {}})
    assert f"{out / 'fedprox'} is in use" in sweep_error(out / "fedprox/.lock")


@pytest.mark.slow
def test_a_sweep_removes_stale_files(run, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("sweep.json.0123abcd.tmp", ".share-0-of-1.lock", ".plan.lock"):
        (out / name).touch()
    command = [f"--config={run / 'toy.py'}", f"--out={out}", "--config.run.rounds=1"]
    assert sweep.main(["sweep", *command]) == 0
    assert {path.name for path in out.iterdir()} - {".compiled"} == {"fedavg", "sweep.json"}


def test_slow_checkpoints_are_saved_less_often(monkeypatch):
    """In 1,000 rounds of one second, checkpoints of 20 seconds take about a tenth of the time."""
    now, saved = [0.0], []

    class Slow:
        def save(self, rounds, state, kept):
            now[0] += 20
            saved.append(rounds)

    monkeypatch.setattr(workdir.time, "monotonic", lambda: now[0])
    folder = SimpleNamespace(_checkpoints=Slow(), _next_save=0.0, _publish=lambda: None)
    for played in range(1, 1001):
        now[0] += 1
        engine = SimpleNamespace(played=played, snapshot=lambda: None, kept=list)
        workdir.Workdir.save(folder, engine, force=False)
    assert saved[0] == 1 and len(saved) == 6
    assert 0.08 < 20 * len(saved) / now[0] < 0.12


# The lock of a folder, which has one owner until the process of the owner ends.


def test_a_second_owner_is_rejected_until_the_first_process_ends(tmp_path):
    with another_process(tmp_path / ".lock") as process:
        for _ in range(2):
            with pytest.raises(BadInput, match=f"{tmp_path} is in use"), lock.owned(tmp_path):
                pass
        with pytest.raises(BadInput, match="in use"):
            lock.check_free([tmp_path / "new", tmp_path])
        process.kill()
        process.wait()
        assert (tmp_path / ".lock").exists()  # the remaining file does not block
        with lock.owned(tmp_path):
            pass
    assert not list(tmp_path.iterdir())


def test_the_owner_may_lock_again_but_another_thread_may_not(tmp_path):
    errors = []

    def lock_folder():
        try:
            with lock.owned(tmp_path):
                pass
        except BadInput as error:
            errors.append(error)

    def in_a_thread():
        thread = threading.Thread(target=lock_folder)
        thread.start()
        thread.join()

    with lock.owned(tmp_path):
        with lock.owned(tmp_path / "." / ""):
            in_a_thread()
        in_a_thread()
        assert len(errors) == 2
    in_a_thread()
    assert len(errors) == 2


def test_a_new_folder_that_stays_empty_is_removed(tmp_path):
    with pytest.raises(KeyboardInterrupt), lock.owned(tmp_path / "a/b"):
        assert (tmp_path / "a/b").is_dir()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    with lock.owned(tmp_path / "a/b"):
        (tmp_path / "a/note").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["note"]
    with lock.owned(tmp_path):  # a folder that already existed is not removed
        (tmp_path / "a/note").unlink()
        (tmp_path / "a").rmdir()
    assert tmp_path.is_dir()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_gives_one_warning(number, tmp_path, monkeypatch, capsys):
    def flock(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock.owned(tmp_path / "run"), lock.owned(tmp_path / "run"):
        (tmp_path / "run/note").touch()
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and f"{tmp_path / 'run'} does not support locks" in warning
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["note"]


def test_shares_of_a_sweep_with_a_common_cell_exclude_each_other(tmp_path):
    with another_process(tmp_path / ".share-1-of-4.lock"):
        for free in ("0/2", "0/4", "2/4", "6/8"):
            with lock.owned_share(tmp_path, free), lock.planning(tmp_path):
                pass
        for taken in ("1/4", "0/1", "1/2", "5/8", "0/3"):
            with pytest.raises(BadInput, match="in use"), lock.owned_share(tmp_path, taken):
                pass
    with lock.owned_share(tmp_path, "1/4"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_not_utf8_or_in_a_removed_folder_is_rejected(tmp_path, monkeypatch):
    """Checkpoints could not be written in such a folder."""
    bad = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with pytest.raises(BadInput, match="path in valid UTF-8"), lock.owned(bad / "run"):
        pass
    assert not bad.exists()
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadInput, match="the current folder has been removed"):
        with lock.owned(Path("run")):
            pass
