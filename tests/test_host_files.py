"""Checkpoints of runs whose clients keep their state on the host."""

import errno
import os
import shutil

import pytest
import toys
from commands import without_clock
from shared_programs import shared_programs  # noqa: F401

from fedjax_lab.engine.host import playing
from fedjax_lab.engine.host.host_state import HostState
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.experiment.experiment import build
from fedjax_lab.running import runner, workdir
from fedjax_lab.running.storage import host_files


@pytest.fixture(autouse=True)
def every_evaluation(monkeypatch):
    """Saves a checkpoint after each evaluation, with blocks of two rounds."""
    monkeypatch.setattr(workdir, "SAVE_SECONDS", 0)
    monkeypatch.setattr(workdir, "SAVE_SHARE", 1)
    monkeypatch.setattr(playing, "MOST_ROUNDS", 2)


def play(folder, name, resume=False, **engine):
    """Plays a run of SCAFFOLD and returns its rows and its states."""
    file = toys.write_config(folder, run={"rounds": 6, "eval_every": 2, "cohort": 3})
    overrides = [(f"engine.{key}", value) for key, value in engine.items()]
    config = resolve(load_config(f"{file}:scaffold"), overrides)
    result = runner.run(build(config, [0, 1]), folder / name, resume=resume, quiet=True)
    return without_clock(result.metrics), result.states


def damage(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.exhaustive
def test_a_resumed_run_equals_an_uninterrupted_run(tmp_path, capsys):
    """The numbers equal those of a run on the devices. The newest two checkpoints are kept.

    Instead of a damaged checkpoint the previous one is loaded; if all are damaged, it is an error.
    """
    rows, states = play(tmp_path, "devices", seeds="sequential")
    toys.same(play(tmp_path, "run", state="disk")[1], states)
    folder = tmp_path / "run" / "kept"
    assert sorted(os.listdir(folder)) == ["4", "6"]
    (tmp_path / "run" / "summary.json").unlink()
    damage(folder / "6" / "1-0")
    again = play(tmp_path, "run", resume=True, state="disk")
    assert "checkpoint 6" in capsys.readouterr().err and again[0] == rows
    toys.same(again[1], states)
    (tmp_path / "run" / "summary.json").unlink()
    shutil.rmtree(folder / "4")
    damage(folder / "6" / "0-0")
    with pytest.raises(BadInput, match="all checkpoints in .* are damaged"):
        play(tmp_path, "run", resume=True, state="disk")


def test_a_pipe_in_place_of_a_checkpoint_file_does_not_block(tmp_path):
    (tmp_path / "6").mkdir()
    os.mkfifo(tmp_path / "6" / "0-0")
    with pytest.raises(OSError, match="it is a pipe"):
        host_files.check(tmp_path / "6", [{"files": [[0, 1, ""]]}])


@pytest.mark.exhaustive
def test_a_full_disk_does_not_damage_earlier_checkpoints(tmp_path, monkeypatch):
    expected = play(tmp_path, "whole", state="host")
    save, calls = HostState.save, []

    def failing(self, file):
        calls.append(0)
        if len(calls) > 3:  # the second file of the second checkpoint
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(self, file)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(HostState, "save", failing)
        play(tmp_path, "run", state="host")
    toys.same(play(tmp_path, "run", resume=True, state="host"), expected)
