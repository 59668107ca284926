"""Folders in the cloud: the files of the store, the order of uploads, and who may write."""

import json
import re
import tempfile
from pathlib import Path

import fsspec
import jax
import pytest
import toys
from commands import call, comparable
from fsspec.implementations.memory import MemoryFileSystem
from slow_cases import slow_but
from stops import stopping_after

import fedjax_lab
from fedjax_lab import figures, report, sweep, tensorboard
from fedjax_lab.config_files import load_config
from fedjax_lab.errors import BadInput
from fedjax_lab.running import checkpoint, cloud, metrics, workdir

RUN = {"rounds": 8, "eval_every": 2, "cohort": 3}
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
    """Records the content of the store before each write and removal; one of them may fail."""

    def __init__(self, store, monkeypatch, fails_at=None):
        self.before, self.fails_at = [], fails_at
        for name in ("put_file", "pipe_file", "rm_file"):
            monkeypatch.setattr(MemoryFileSystem, name, self.noted(name, store))

    def noted(self, name, store):
        write = getattr(MemoryFileSystem, name)

        def noted(fs, *args, **kwargs):
            self.before.append(store())
            if len(self.before) - 1 == self.fails_at:
                raise ConnectionError("the network is down")
            return write(fs, *args, **kwargs)

        return noted


def without_random_names(names):
    """The names of the files that have the same name in every run."""
    return {name for name in names if "/d/" not in name}


def resume_round(before):
    """The round after which a run would resume from this content of the store, or -1."""
    put_back(before)
    with cloud.staged(f"{BUCKET}/run", writes=False) as local:
        if not (local / "config.json").exists():
            return -1
        cloud.take(local)
        (local / "checkpoints").mkdir(exist_ok=True)
        saved = checkpoint.Checkpoints(local / "checkpoints")
        rounds, _ = saved.newest()
        saved.close()
        evaluated = [row["round"] for row in metrics.read_metrics(local / "metrics.jsonl")]
        assert evaluated[: rounds // 2] == list(range(2, rounds + 1, 2))
        return rounds


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


def test_a_run_in_the_cloud_equals_one_in_a_local_folder(
    folder, undisturbed, store, copies, capsys
):
    assert run(folder) == 0
    assert (
        "results: memory://bucket/run  (curve: memory://bucket/run/plots" in capsys.readouterr()[0]
    )
    assert rows() == undisturbed
    local = folder / "local"
    names = {path.relative_to(local).as_posix() for path in local.rglob("*") if path.is_file()}
    assert without_random_names(name.removeprefix("/bucket/run/") for name in store()) == (
        without_random_names(names)
    )
    assert not list(Path().glob("memory:*")) and not list(copies.iterdir())


@pytest.mark.slow
def test_a_run_in_the_cloud_resumes_without_local_files(folder, undisturbed, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stopping_after(5, patch)
        assert run(folder) == 130
    assert "--workdir=memory://bucket/run --resume" in capsys.readouterr().err
    assert run(folder) == 2
    assert "memory://bucket/run is not empty; use --resume" in capsys.readouterr().err
    assert run(folder, "--resume", "--config.local.lr=0.2") == 2
    assert "memory://bucket/run holds another run: its config.local.lr" in capsys.readouterr().err
    assert run(folder, "--resume") == 0
    assert rows() == undisturbed
    assert "round 2/8" not in capsys.readouterr().out
    assert run(folder, "--resume") == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "begins", ["anew", pytest.param("from a damaged checkpoint", marks=pytest.mark.slow)]
)
def test_a_kill_between_any_two_uploads_loses_no_checkpoint(
    begins, folder, undisturbed, store, monkeypatch, capsys
):
    if begins != "anew":
        assert run(folder) == 0
        for path, content in store().items():
            if "checkpoints/8/leaves" in path and "/d/" in path:
                fsspec.filesystem("memory").pipe_file(path, content[:-5])
    with monkeypatch.context() as patch:
        journal = Journal(store, patch)
        assert run(folder, *["--resume"] * (begins != "anew")) == 0
    states = [resume_round(before) for before in journal.before]
    least = {"anew": -1, "from a damaged checkpoint": 6}[begins]
    assert states == sorted(states) and states[0] == least and states[-1] == 8
    assert "damaged" not in capsys.readouterr().err or begins != "anew"
    for rounds in set(states) - {-1}:  # with as much of the next checkpoint as possible
        put_back(journal.before[len(states) - 1 - states[::-1].index(rounds)])
        assert run(folder, "--resume") == 0 and rows() == undisturbed


@pytest.mark.slow
def test_a_kill_while_a_seed_is_merged_into_a_run_in_the_cloud(folder, store, monkeypatch):
    """The kill is between two uploads of the merge; some of these moments are tried."""
    assert run(folder) == 0
    with monkeypatch.context() as patch:
        journal = Journal(store, patch)
        assert run(folder, "--resume", "--seeds=0,1") == 0
    whole = rows()
    assert [row["seed"] for row in whole] == [0, 1] * 4
    assert not any("added_seeds" in path or "merged" in path for path in store())
    merging = [b for b in journal.before if any("run/merged/" in path for path in b)]
    assert any("/bucket/run/merged/summary.json" in before for before in merging)
    for before in merging[:: len(merging) // 4]:
        put_back(before)
        assert run(folder, "--resume", "--seeds=0,1") == 0
        assert rows() == whole
        left = [path for path in store() if "added_seeds" in path or "merged" in path]
        assert not left


@pytest.mark.parametrize("fails_at", slow_but([0, 2], [0, 2, 30]))
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
    if fails_at == 30:
        assert run(folder, "--resume") == 0 and rows() == undisturbed


def test_truncated_downloads_are_rejected(folder, monkeypatch, capsys):
    assert run(folder) == 0
    get_file = MemoryFileSystem.get_file

    def cut(fs, remote, local, **more):
        get_file(fs, remote, local, **more)
        Path(local).write_bytes(Path(local).read_bytes()[:-1])

    monkeypatch.setattr(MemoryFileSystem, "get_file", cut)
    capsys.readouterr()
    assert run(folder, "--resume") == 2
    message = capsys.readouterr().err
    assert re.match("error: memory://bucket/run cannot be read: .* was truncated", message)


@pytest.mark.slow
def test_a_command_ends_if_another_command_takes_over_its_run(
    folder, undisturbed, store, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        taken_after_round(6, store, patch)
        assert run(folder) == 2
    message = capsys.readouterr().err
    assert (
        "memory://bucket/run was taken over by another command, process 7 on other; th" in message
    )
    assert [row["round"] for row in rows()] == [2, 4]  # the rows that it had uploaded before
    assert [path for path in store() if path.endswith(".owner")]
    assert run(folder, "--resume") == 0 and rows() == undisturbed
    assert not [path for path in store() if path.endswith(".owner")]


@pytest.mark.slow
def test_client_states_on_the_host_are_saved_in_the_cloud(folder, undisturbed, monkeypatch):
    more = ["--config.method.name=scaffold", "--config.engine.state=host"]
    with monkeypatch.context() as patch:
        stopping_after(5, patch)
        assert run(folder, *more) == 130
    assert run(folder, *more, "--resume") == 0
    assert call(f"--config={folder / 'toy.py'}", *more, f"--workdir={folder / 'host'}") == 0
    assert rows() == comparable(folder / "host")


@pytest.mark.slow
def test_a_run_from_python_writes_into_the_cloud(folder):
    config = load_config(str(folder / "toy.py"))
    result = fedjax_lab.run(config, workdir=Path(f"{BUCKET}/run"), quiet=True)  # memory:/bucket
    assert str(result.workdir) == "memory:/bucket/run"
    assert rows() == [{k: v for k, v in row.items() if k != "seconds"} for row in result.metrics]


@pytest.mark.slow
def test_partition_only_writes_its_table_and_picture_into_the_cloud(folder, store, capsys):
    assert run(folder, "--partition_only") == 0
    assert sorted(store()) == ["/bucket/run/partition.csv", "/bucket/run/partition.png"]
    assert "picture: memory://bucket/run/partition.png" in capsys.readouterr().out
    assert run(folder) == 0


def test_several_processes_cannot_share_a_run_in_the_cloud(folder, monkeypatch):
    with cloud.staged(f"{BUCKET}/run") as local:
        monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
        with pytest.raises(BadInput, match="cannot hold a run of several processes"):
            workdir._check_shared(local)


# Many runs.


@pytest.mark.slow
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
    pytest.importorskip("tensorboardX")
    assert tensorboard.main([f"{BUCKET}/sweep", f"--logdir={tmp_path / 'logs'}"]) == 0
    assert {path.parent.name for path in tmp_path.rglob("*tfevents*")} >= {*plan["cells"], "seed-0"}
    assert store() == before


@pytest.mark.slow
def test_a_failed_cell_in_cloud_storage_is_retried(folder, store, monkeypatch):
    words = [f"--config={folder / 'toy.py'}", f"--out={BUCKET}/sweep"]
    with monkeypatch.context() as patch:
        patch.setattr(sweep.runner, "run", lambda *args, **more: 1 / 0)
        assert sweep.main(["sweep", *words]) == 1
    (failed,) = (path for path in store() if path.endswith("error.txt"))
    assert b"ZeroDivisionError" in store()[failed]
    assert sweep.main(["sweep", *words]) == 0
    assert failed not in store()
    (summary,) = (path for path in store() if path.endswith("summary.json"))


@pytest.mark.slow
def test_a_cell_taken_over_by_another_command_is_left_to_it(folder, store, monkeypatch, capsys):
    words = [f"--config={folder / 'toy.py'}", f"--out={BUCKET}/sweep"]
    with monkeypatch.context() as patch:
        taken_after_round(6, store, patch)
        assert sweep.main(["sweep", *words]) == 1
    assert "was taken over by another command, process 7 on other" in capsys.readouterr().out
    assert store()["/bucket/sweep/fedavg/.owner"] == b"process 7 on other"
    assert store()["/bucket/sweep/fedavg/metrics.jsonl"].count(b"\n") == 2
    assert "/bucket/sweep/fedavg/error.txt" not in store()


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("fails_at", [60, 20, 90])
def test_cells_continue_one_by_one_after_a_failed_upload(
    fails_at, folder, undisturbed, store, monkeypatch, copies, capsys
):
    Journal(store, monkeypatch, fails_at)
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
        cloud.refresh(local)
        assert (local / "metrics.jsonl").read_text() == "2"
        assert (local / "config.json").stat() == first
        assert not list(local.glob("checkpoints/*"))
        (local / "more").write_text("")
    assert "/bucket/run/more" not in store()


@pytest.mark.slow
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
        ("gs://", "names no bucket: gs://BUCKET/FOLDER"),
        ("s3:///folder", "names no bucket: s3://BUCKET/FOLDER"),
        ("foo://bucket/run", "unknown scheme foo://; valid: gs://, s3://"),
        ("gs://bucket/../run", "must not contain"),
        ("memory://bucket/file", "is a file, not a folder"),
    ],
)
def test_an_invalid_address_is_a_one_line_error(place, message, folder, capsys):
    fsspec.filesystem("memory").pipe_file("/bucket/file", b"1")
    assert run(folder, place=place) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(Path().glob("*:"))


def test_the_missing_package_of_a_scheme_is_named(folder, monkeypatch, capsys):
    def missing(*_, **__):
        raise ImportError("no gcsfs")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    assert run(folder, place="gs://bucket/run") == 2
    assert "needs the package gcsfs: pip install gcsfs" in capsys.readouterr().err


def test_missing_credentials_are_a_one_line_error(folder, monkeypatch, copies, capsys):
    def refused(*_, **__):
        raise RuntimeError("Your default credentials\nwere not found")

    monkeypatch.setattr(MemoryFileSystem, "find", refused)
    assert run(folder) == 2
    message = capsys.readouterr().err
    assert "cannot be read: Your default credentials were not found (RuntimeError)" in message
    assert not list(copies.iterdir())


def test_local_paths_are_distinguished_from_addresses():
    for path in ("runs/a", "/tmp/x:y", "a:b/c", "C:/x", None, ""):
        assert cloud.split(path) is None
    assert cloud.split("file:///b/x") == cloud.split(Path("file:///b/x")) == ("file", "/b/x")
    assert cloud.split("gs://b/x/") == cloud.split(Path("gs://b/x")) == ("gs", "b/x")


def test_a_cloud_address_is_rejected_where_a_local_path_is_needed(capsys):
    assert report.main(["runs", "--out=gs://bucket/table.md"]) == 2
    assert "--out must be a local path, got gs:" in capsys.readouterr().err
    with pytest.raises(BadInput, match="must be a local path"):
        metrics.make_folder(Path("gs://bucket/x"))


def test_a_run_in_the_cloud_is_loaded_without_changing_the_store(folder, store):
    assert run(folder) == 0
    before = store()
    loaded = fedjax_lab.load(f"{BUCKET}/run")
    assert (loaded.rounds, loaded.folder) == (8, f"{BUCKET}/run")
    assert loaded.predict(loaded.experiment.dataset.x[:2]).shape == (2, 3)
    assert store() == before
