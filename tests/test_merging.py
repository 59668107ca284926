"""A run is merged with the files of added seeds, with a kill before any of the steps."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from fedjax_lab.running import growth, merging, metrics

FILES = ("fingerprint.json", "metrics.jsonl", "checkpoints/4/a/0", "kept/4/0-0", "stages/s-0.npz")


class Killed(BaseException):
    """An exception that no code of the package catches."""


def write_run(folder, seeds, text):
    """Writes the files of a finished run that merging uses."""
    for name in (*FILES, "plots/learning_curve.png", "summary.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text} {name}")
    config = {**dict.fromkeys(("data", "partition", "run"), {}), "method": {"name": "fedavg"}}
    metrics.write_json(folder / "config.json", {**config, "seeds": seeds})


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path / "run", [0, 1], "old")
    (tmp_path / "run/checkpoints/2").mkdir()
    (tmp_path / "run/partition.png").touch()
    write_run(tmp_path / "run" / growth.ADDED, [2], "new")
    write_run(tmp_path / "run" / merging.MERGED, [0, 1, 2], "merged")
    return tmp_path / "run"


def content(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def killed_at(step, patch):
    """Simulates a kill before the step with this number; steps are changes of files."""
    done = []

    def counted(change):
        def one(*args, **kwargs):
            if len(done) == step:
                raise Killed
            done.append(change)
            return change(*args, **kwargs)

        return one

    for owner, name in ((os, "link"), (os, "replace"), (os, "rmdir"), (os, "unlink")):
        patch.setattr(owner, name, counted(getattr(owner, name)))
    patch.setattr(Path, "unlink", counted(Path.unlink))
    patch.setattr(Path, "mkdir", counted(Path.mkdir))
    return done


def killed_everywhere(folder, tmp_path):
    """Yields (step, run) for a kill before each step of settling, and then a settled run."""
    step_of_end = None
    for step in range(1000):
        run = shutil.copytree(folder, tmp_path / str(step))
        with pytest.MonkeyPatch.context() as patch:
            killed_at(step, patch)
            with contextlib.suppress(Killed):
                merging.settle(run)
                step_of_end = step
        yield step, run
        if step_of_end == step:
            return


def test_a_merge_is_completed_after_a_kill_at_any_step(folder, tmp_path):
    write_run(tmp_path / "expected", [0, 1, 2], "merged")
    (tmp_path / "expected/partition.png").touch()
    expected = {**content(tmp_path / "expected"), "partition.png": ""}
    for step, run in killed_everywhere(folder, tmp_path):
        merging.settle(run)
        left = {name: text for name, text in content(run).items() if not name.endswith(".tmp")}
        assert left == expected, step
        assert not (run / growth.ADDED).exists() and not (run / merging.MERGED).exists()
    assert step > 30 and content(run) == expected


def test_an_incomplete_merged_run_is_removed(folder, tmp_path):
    (folder / merging.MERGED / "summary.json").unlink()
    old = {name: text for name, text in content(folder).items() if not name.startswith("merged/")}
    for step, run in killed_everywhere(folder, tmp_path):
        merging.settle(run)
        assert content(run) == old, step
    assert step > 8


def test_added_seeds_that_never_began_or_were_merged_are_removed(folder):
    shutil.rmtree(folder / merging.MERGED)
    merging.settle(folder)
    assert (folder / growth.ADDED).exists()
    (folder / growth.ADDED / "config.json").rename(
        folder / growth.ADDED / "config.json.0123abcd.tmp"
    )
    merging.settle(folder)
    assert not (folder / growth.ADDED).exists()
    write_run(folder / growth.ADDED, [1], "new")
    merging.settle(folder)
    assert not (folder / growth.ADDED).exists()


def test_merging_works_on_a_file_system_without_links(folder, monkeypatch):
    def no_links(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    merging.settle(folder)
    assert content(folder)["checkpoints/4/a/0"] == "merged checkpoints/4/a/0"
