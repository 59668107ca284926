"""Folders in the cloud: the files of the store, the order of uploads, and who may write."""

import csv
import json
import re
import shutil
import tempfile
from pathlib import Path

import fsspec
import jax
import optional
import pytest
import toys
from commands import call, comparable
from fsspec.implementations.memory import MemoryFileSystem
from inputs import complaint
from shared_programs import shared_programs  # noqa: F401
from slow_cases import slow_but
from stops import stopping_after

import fedjax_lab
from fedjax_lab.commands import figures, report, sweep, tensorboard
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import workdir
from fedjax_lab.running.storage import cloud, metric_rows

RUN = {"rounds": 4, "eval_every": 2, "cohort": 3}
BUCKET = "memory://bucket"


@pytest.fixture(autouse=True, scope="module")
def save_often():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workdir, "SAVE_SECONDS", 0)
        patch.setattr(workdir, "SAVE_SHARE", 1)
        yield


@pytest.fixture(autouse=True)
def copies(tmp_path_factory, monkeypatch):
    """The folder for local working copies."""
    folder = tmp_path_factory.mktemp("copies")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    cloud._root.cache_clear()
    yield folder
    cloud._root.cache_clear()


@pytest.fixture(autouse=True)
def store():
    """A function that reads the files of the store as {path: bytes}."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return lambda: {path: file.getvalue() for path, file in MemoryFileSystem.store.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a data set and a config that uses it."""
    folder = tmp_path_factory.mktemp("cloud")
    toys.write_examples(folder / "data.npz")
    toys.write_config(folder, run=RUN)
    return folder


@pytest.fixture(scope="module")
def undisturbed(folder):
    """The metrics of an uninterrupted run in a local folder."""
    assert call(f"--config={folder / 'toy.py'}", f"--workdir={folder / 'local'}") == 0
    return comparable(folder / "local")


def run(folder, *more, place=f"{BUCKET}/run"):
    return call(f"--config={folder / 'toy.py'}", f"--workdir={place}", *more)


def rows(place=f"{BUCKET}/run"):
    with cloud.staged(place, writes=False) as local:
        return comparable(local)


def put_back(before):
    """Restores an earlier content of the store."""
    MemoryFileSystem.store.clear()
    for path, content in before.items():
        fsspec.filesystem("memory").pipe_file(path, content)


class Journal:
    """Records each write and removal, and the store before it; one of them may fail."""

    def __init__(self, store, monkeypatch, fails_at=None):
        self.before, self.steps, self.fails_at = [], [], fails_at
        for name in ("put_file", "pipe_file", "rm_file"):
            monkeypatch.setattr(MemoryFileSystem, name, self.noted(name, store))

    def noted(self, name, store):
        write = getattr(MemoryFileSystem, name)

        def noted(fs, *args, **kwargs):
            place = args[name == "put_file"].removeprefix("/bucket/run/")
            self.steps.append(f"-{place}" if name == "rm_file" else place)
            self.before.append(store())
            if len(self.before) - 1 == self.fails_at:
                raise ConnectionError("the network is down")
            return write(fs, *args, **kwargs)

        return noted


def without_random_names(names):
    """The names of the files that have the same name in every run."""
    return {name for name in names if "/d/" not in name}


def write(local, *names, text="1"):
    """Writes files with this text; a number stands for the files of a checkpoint."""
    files = ("checkpoints/{0}/_CHECKPOINT_METADATA", "checkpoints/{0}/leaves/d/a{1}", "kept/{0}/0")
    for name in names:
        for file in files if isinstance(name, int) else (name,):
            path = local / file.format(name, text)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def contents(local):
    """The files of a working copy, without locks."""
    files = (file for file in local.rglob("*") if file.is_file() and file.name[0] != ".")
    return {file.relative_to(local).as_posix(): file.read_text() for file in files}


def contents_of_store(store):
    return {path.removeprefix("/bucket/run/"): data.decode() for path, data in store().items()}


def taken_after_round(number, store, monkeypatch):
    """Lets another command take over the run after the evaluation of a round."""
    append = workdir.Workdir.append

    def appended(self, new):
        append(self, new)
        if new[0]["round"] == number:
            (mark,) = (path for path in store() if path.endswith(".owner"))
            fsspec.filesystem("memory").pipe_file(mark, b"process 7 on other")

    monkeypatch.setattr(workdir.Workdir, "append", appended)


# A run.


@pytest.mark.slow
def test_a_run_in_the_cloud_equals_one_in_a_local_folder(
    folder, undisturbed, store, copies, capsys
):
    assert run(folder) == 0
    assert "results: memory://bucket/run" in capsys.readouterr().out
    assert rows() == undisturbed
    local = folder / "local"
    names = {path.relative_to(local).as_posix() for path in local.rglob("*") if path.is_file()}
    assert without_random_names(name.removeprefix("/bucket/run/") for name in store()) == (
        without_random_names(names)
    )
    assert not list(Path().glob("memory:*")) and not list(copies.iterdir())
    before = store()
    loaded = fedjax_lab.load(f"{BUCKET}/run")
    assert (loaded.rounds, loaded.folder) == (4, f"{BUCKET}/run")
    assert loaded.predict(loaded.experiment.dataset.x[:2]).shape == (2, 3)
    assert store() == before


@pytest.mark.slow
def test_a_run_in_the_cloud_resumes_without_local_files(folder, monkeypatch, capsys):
    """The state of its clients is kept on the host, and saved in the cloud."""
    more = ["--config.method.name=scaffold", "--config.engine.state=host"]
    assert call(f"--config={folder / 'toy.py'}", *more, f"--workdir={folder / 'host'}") == 0
    with monkeypatch.context() as patch:
        stopping_after(3, patch)
        assert run(folder, *more) == 130
    assert "--workdir=memory://bucket/run --resume" in capsys.readouterr().err
    assert run(folder, *more) == 2
    assert "memory://bucket/run is not empty; use --resume" in capsys.readouterr().err
    assert run(folder, *more, "--resume", "--config.local.lr=0.2") == 2
    assert "memory://bucket/run holds another run: its config.local.lr" in capsys.readouterr().err
    assert run(folder, *more, "--resume") == 0
    assert rows() == comparable(folder / "host")
    assert "round 2/4" not in capsys.readouterr().out
    assert run(folder, *more, "--resume") == 0


def test_uploads_follow_an_order_in_which_a_run_can_always_be_resumed(store, monkeypatch):
    with monkeypatch.context() as patch, cloud.staged(f"{BUCKET}/run") as local:
        write(local, "metrics.jsonl", "config.json", "fingerprint.json", "stages/a.npz", 2)
        write(local, ".lock", "a.0123abcd.tmp", "checkpoints/4.orbax-checkpoint-tmp-7/a")
        journal = Journal(store, patch)
        cloud.publish(local)
        first = ["fingerprint.json", "config.json", "kept/2/0", "stages/a.npz", "metrics.jsonl"]
        complete, leaves = "checkpoints/2/_CHECKPOINT_METADATA", "checkpoints/2/leaves/d/a1"
        assert journal.steps == [*first, leaves, complete]
        cloud.publish(local)
        assert len(journal.steps) == 7
        write(local, "summary.json", "metrics.jsonl", 4, text="2")
        for name in ("stages", "checkpoints/2", "kept/2"):
            shutil.rmtree(local / name)
        cloud.publish(local)
        new = ["kept/4/0", "metrics.jsonl", "checkpoints/4/leaves/d/a2"]
        new += ["checkpoints/4/_CHECKPOINT_METADATA", "summary.json"]
        old = [f"-{name}" for name in (complete, leaves, "kept/2/0")]
        assert journal.steps[7:] == ["-stages/a.npz", *new, *old]
    for i, (last, before) in enumerate(zip(["", *journal.steps], journal.before, strict=False)):
        put_back(before)
        with cloud.staged(f"{BUCKET}/run") as local, cloud.owned(local):
            assert not i or (local / "config.json").exists() or last == "fingerprint.json"
            numbers = [int(folder.name) for folder in local.glob("checkpoints/*")]
            for number in numbers:
                assert (local / f"kept/{number}/0").exists() and (local / "metrics.jsonl").exists()
            assert numbers or i <= 7
        whole = {path for path in before if not re.search("checkpoints/|kept/", path)}
        whole |= {
            path for path in before for n in numbers if re.search(f"(checkpoints|kept)/{n}/", path)
        }
        assert store().keys() == whole  # torn checkpoints and the mark are removed


@pytest.mark.exhaustive
def test_more_seeds_of_a_run_in_the_cloud_are_a_run_beside_it(folder, store, capsys):
    assert run(folder) == 0
    for seeds in ("0,1", "0,1", "0-2"):  # the second time there is nothing to do
        before = store()
        assert run(folder, "--resume", f"--seeds={seeds}") == 0
        assert all(store()[path] == before[path] for path in before)
    assert {path.split("/")[2] for path in store()} == {"run", "run-seeds-1", "run-seeds-2"}
    assert [row["seed"] for row in rows(f"{BUCKET}/run-seeds-1")] == [1, 1]
    capsys.readouterr()
    for place, count in ((BUCKET, "3"), (f"{BUCKET}/run", "1")):
        assert report.main([place, "--format=csv"]) == 0
        (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
        assert row["n"] == count


def test_a_command_ends_if_another_command_takes_over_its_run(
    folder, undisturbed, store, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        taken_after_round(4, store, patch)
        assert run(folder) == 2
    message = capsys.readouterr().err
    place = "memory://bucket/run"
    assert f"{place} was taken over by another command, process 7 on other; this" in message
    assert message.count("\n") == 1
    assert [row["round"] for row in rows()] == [2]  # what it had uploaded before
    assert store()["/bucket/run/.owner"] == b"process 7 on other"
    assert run(folder, "--resume") == 0 and rows() == undisturbed
    assert "/bucket/run/.owner" not in store()


def test_a_run_that_was_taken_over_is_left_to_its_new_owner(store):
    with cloud.staged(f"{BUCKET}/sweep") as out:
        with cloud.owned(out / "cell"):
            write(out, "cell/config.json", "sweep.json")
            cloud.publish(out)
            write(out, "cell/metrics.jsonl", "more.json")
            fsspec.filesystem("memory").rm_file("/bucket/sweep/cell/.owner")
            message = complaint(cloud.publish, out)
        place = "memory://bucket/sweep/cell"
        assert f"{place} was taken over by another command, which has ended since" in message
        assert "was taken over" in complaint(cloud.owned(out / "cell").__enter__)
    names = ("cell/config.json", "more.json", "sweep.json")
    assert sorted(store()) == [f"/bucket/sweep/{name}" for name in names]


def test_a_copy_of_a_folder_within_another_copy_changes_nothing(store):
    with cloud.staged(f"{BUCKET}/sweep") as out:
        write(out / "cell", "config.json", 4)
        cloud.publish(out)
        before = store()
        with cloud.staged(f"{BUCKET}/sweep/cell", writes=False) as inner:
            assert inner == out / "cell"
    assert store() == before


@pytest.mark.parametrize("fails_at", slow_but([2], [2, 20]))
def test_a_failing_store_ends_a_run_with_a_one_line_error(
    fails_at, folder, undisturbed, store, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        Journal(store, patch, fails_at)
        assert run(folder) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: memory://bucket/run cannot be written: the network is down")
    assert message.count("\n") == 1
    copy = re.search("all files are in ([^;\n]+)", message)[1]
    if (Path(copy) / "config.json").exists():
        assert run(folder, "--resume", place=copy) == 0 and comparable(copy) == undisturbed
    if fails_at == 20:
        assert run(folder, "--resume") == 0 and rows() == undisturbed


def test_truncated_downloads_are_rejected(store, monkeypatch):
    def cut(fs, remote, local, **more):
        Path(local).write_bytes(fs.cat_file(remote)[:-1])

    fsspec.filesystem("memory").pipe_file("/bucket/run/config.json", b"12")
    with cloud.staged("memory://bucket") as local:
        old = store()
        fsspec.filesystem("memory").pipe_file("/bucket/run/config.json", b"34")
        monkeypatch.setattr(MemoryFileSystem, "get_file", cut)
        message = complaint(cloud.fetch, local)
        assert message.startswith("memory://bucket cannot be read: run/config.json was truncated")
        assert (local / "run/config.json").read_bytes() == old["/bucket/run/config.json"]


@pytest.mark.slow
def test_partition_only_and_a_run_from_python_write_into_the_cloud(folder, store, capsys):
    assert run(folder, "--partition_only") == 0
    assert sorted(store()) == ["/bucket/run/partition.csv", "/bucket/run/partition.png"]
    assert "picture: memory://bucket/run/partition.png" in capsys.readouterr().out
    config = load_config(str(folder / "toy.py"))
    result = fedjax_lab.run(config, workdir=Path(f"{BUCKET}/run"), quiet=True)  # memory:/bucket
    assert str(result.workdir) == "memory:/bucket/run"
    assert rows() == [{k: v for k, v in row.items() if k != "seconds"} for row in result.metrics]


def test_several_processes_cannot_share_a_run_in_the_cloud(folder, monkeypatch):
    with cloud.staged(f"{BUCKET}/run") as local:
        monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
        message = complaint(workdir._check_shared, local)
    assert "cannot hold a run of several processes" in message


# Many runs.


@pytest.mark.exhaustive
def test_report_figures_and_tensorboard_read_a_sweep_in_the_cloud(folder, store, tmp_path, capsys):
    words = [f"--config={folder / 'toy.py'}", f"--out={BUCKET}/sweep", "--methods=fedavg,fedprox"]
    assert sweep.main(["sweep", *words]) == 0
    assert "results: memory://bucket/sweep" in capsys.readouterr().out
    plan = json.loads(store()["/bucket/sweep/sweep.json"])
    assert len(plan["cells"]) == 2
    before = store()
    assert sweep.main(["sweep", *words]) == 0
    assert "2 cells in memory://bucket/sweep, 2 of them done" in capsys.readouterr().out
    assert store() == before
    assert report.main([f"{BUCKET}/sweep", "--baseline=fedavg"]) == 0
    assert "fedprox" in capsys.readouterr().out
    assert report.main([f"{BUCKET}/nothing"]) == 2
    assert "memory://bucket/nothing does not exist" in capsys.readouterr().err
    assert figures.main(["domain_gap", f"{BUCKET}/sweep/fedavg"]) == 0
    assert "memory://bucket/sweep/fedavg/figures/domain_gap.png" in capsys.readouterr().out
    (picture,) = store().keys() - before.keys()
    assert picture == "/bucket/sweep/fedavg/figures/domain_gap.png"
    before = store()
    optional.module("tensorboardX")
    assert tensorboard.main([f"{BUCKET}/sweep", f"--logdir={tmp_path / 'logs'}"]) == 0
    assert {path.parent.name for path in tmp_path.rglob("*tfevents*")} >= {*plan["cells"], "seed-0"}
    assert store() == before


@pytest.mark.exhaustive
def test_a_failed_cell_in_cloud_storage_is_retried(folder, undisturbed, store, monkeypatch, capsys):
    """A cell that another command has taken over is left to that command."""
    words = [f"--config={folder / 'toy.py'}", f"--out={BUCKET}/sweep"]
    with monkeypatch.context() as patch:
        patch.setattr(sweep.runner, "run", lambda *args, **more: 1 / 0)
        assert sweep.main(["sweep", *words]) == 1
    (failed,) = (path for path in store() if path.endswith("error.txt"))
    assert b"ZeroDivisionError" in store()[failed]
    with monkeypatch.context() as patch:
        taken_after_round(4, store, patch)
        assert sweep.main(["sweep", *words]) == 1
    assert "was taken over by another command, process 7 on other" in capsys.readouterr().out
    assert store()["/bucket/sweep/fedavg/.owner"] == b"process 7 on other"
    assert store()["/bucket/sweep/fedavg/metrics.jsonl"].count(b"\n") == 1
    assert failed not in store()
    assert sweep.main(["sweep", *words]) == 0
    assert rows(f"{BUCKET}/sweep/fedavg") == undisturbed
    assert not [path for path in store() if path.endswith(".owner")]


@pytest.mark.exhaustive
def test_cells_run_together_and_in_shares_are_written_to_the_cloud(folder, store, capsys):
    words = [f"--config={folder / 'toy.py'}", f"--out={BUCKET}/sweep", "--grid=local.lr=0.1,0.2"]
    assert sweep.main(["sweep", *words, "--together"]) == 0
    assert "one by one instead" not in capsys.readouterr().out
    names = [path for path in store() if path.endswith("summary.json")]
    assert len(names) == 2 and all(b'"runs_together": 2' in store()[name] for name in names)
    words[-1] += ",0.3,0.4"
    for share in (0, 1):
        assert sweep.main(["sweep", *words, f"--share={share}/2"]) == 0
    assert sum(path.endswith("summary.json") for path in store()) == 4


@pytest.mark.exhaustive
def test_cells_continue_one_by_one_after_a_failed_upload(
    folder, undisturbed, store, monkeypatch, copies, capsys
):
    Journal(store, monkeypatch, fails_at=20)
    words = [f"--config={folder / 'toy.py'}", "--grid=local.lr=0.1,0.2", "--together"]
    assert sweep.main(["sweep", *words, f"--out={BUCKET}/sweep"]) == 0
    assert "running one by one instead of together" in capsys.readouterr().out
    assert rows(f"{BUCKET}/sweep/fedavg,local.lr=0.1") == undisturbed
    assert not list(copies.iterdir())


def test_refresh_downloads_files_that_others_have_written(store):
    bucket = fsspec.filesystem("memory")
    bucket.pipe_file("/bucket/run/config.json", b"1")
    bucket.pipe_file("/bucket/run/checkpoints/2/d/a", b"1")
    with cloud.read([f"{BUCKET}/run"]) as (local,):
        first = (local / "config.json").stat()
        bucket.pipe_file("/bucket/run/metrics.jsonl", b"2")
        cloud.fetch(local)
        assert (local / "metrics.jsonl").read_text() == "2"
        assert (local / "config.json").stat() == first
        assert not list(local.glob("checkpoints/*"))
        (local / "more").write_text("")
    assert "/bucket/run/more" not in store()


@pytest.mark.exhaustive  # workers are tested in local folders
def test_workers_write_their_cells_into_remote_storage(folder, tmp_path, capsys):
    words = [f"--config={folder / 'toy.py'}", "--methods=fedavg,fedprox", "--workers=2"]
    assert sweep.main(["sweep", *words, f"--out=file://{tmp_path}/sweep"]) == 0
    printed = capsys.readouterr().out
    assert "failed" not in printed and "not finished" not in printed
    assert len(list(tmp_path.glob("sweep/*/summary.json"))) == 2
    assert not list(tmp_path.glob("sweep/**/.owner"))
    assert sweep.main(["sweep", *words, f"--out={BUCKET}/sweep"]) == 2


# Addresses.


@pytest.mark.parametrize(
    "place, message",
    [
        ("gs://", "'gs://' is not of the form gs://BUCKET/FOLDER"),
        ("s3:///folder", "is not of the form s3://BUCKET/FOLDER"),
        ("foo://bucket/run", "unknown scheme foo://; valid: gs://, s3://"),
        ("gs://bucket/../run", "is not of the form"),
        ("memory://bucket/file", "is a file, not a folder"),
    ],
)
def test_an_invalid_address_is_a_one_line_error(place, message, folder, capsys):
    fsspec.filesystem("memory").pipe_file("/bucket/file", b"1")
    assert run(folder, place=place) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(Path().glob("*:"))


def test_a_missing_package_or_missing_credentials_are_named(folder, monkeypatch, copies, capsys):
    def missing(*_, **__):
        raise ImportError("Please install gcsfs")

    def refused(*_, **__):
        raise RuntimeError("Your default credentials\nwere not found")

    with monkeypatch.context() as patch:
        patch.setattr(fsspec.core, "url_to_fs", missing)
        assert run(folder, place="gs://bucket/run") == 2
    assert (
        "gs://bucket/run cannot be used: Please install gcsfs (ImportError)"
        in capsys.readouterr().err
    )
    monkeypatch.setattr(MemoryFileSystem, "find", refused)
    assert run(folder) == 2
    message = capsys.readouterr().err
    assert "cannot be read: Your default credentials were not found (RuntimeError)" in message
    assert not list(copies.iterdir())


def test_local_paths_are_distinguished_from_addresses(capsys):
    for path in ("runs/a", "/tmp/x:y", "a:b/c", "C:/x", None, ""):
        assert cloud.split(path) is None
    assert cloud.split("file:///b/x") == cloud.split(Path("file:///b/x")) == ("file", "/b/x")
    assert cloud.split("gs://b/x/") == cloud.split(Path("gs://b/x")) == ("gs", "b/x")
    assert report.main(["runs", "--out=gs://bucket/table.md"]) == 2
    assert "--out must be a local path, got gs:" in capsys.readouterr().err
    assert "must be a local path" in complaint(metric_rows.make_folder, Path("gs://bucket/x"))
