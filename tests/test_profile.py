"""Checks what --profile records, that no result depends on it, and which values it rejects."""

import gzip
import json

import pytest
import toys
from commands import call, comparable, refusal
from inputs import complaint
from stops import stopping_after

import fedjax_lab
from fedjax_lab.commands import sweep
from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment.config_files import load_config

toy = toys.config_file(run={"rounds": 8, "eval_every": 3, "cohort": 3})


@pytest.fixture(scope="module")
def plain(toy, tmp_path_factory):
    """The metrics of the run without a profile."""
    workdir = tmp_path_factory.mktemp("plain") / "w"
    assert call(f"--config={toy}", f"--workdir={workdir}") == 0
    return comparable(workdir)


def recorded(workdir):
    """The slices of Perfetto's file, and the bytes of xprof's."""
    (file,) = workdir.glob("profile/plugins/profile/*/perfetto_trace.json.gz")
    (xplane,) = file.parent.glob("*.xplane.pb")
    events = json.loads(gzip.open(file).read())["traceEvents"]
    return [event for event in events if event.get("ph") == "X"], xplane.read_bytes()


def blocks(events):
    """The number of the first round of each recorded block of rounds."""
    return [int(event["args"]["step_num"]) for event in events if event["name"] == "rounds"]


@pytest.mark.slow
def test_a_profile_records_the_rounds_after_the_first_three(toy, plain, tmp_path, capsys):
    assert call(f"--config={toy}", f"--workdir={tmp_path / 'w'}", "--profile=4") == 0
    assert comparable(tmp_path / "w") == plain
    out = capsys.readouterr().out
    assert f"profile of rounds 4 to 7: {tmp_path / 'w' / 'profile'}\n" in out
    events, xplane = recorded(tmp_path / "w")
    assert min(blocks(events)) == 4 and max(blocks(events)) in (4, 5, 6, 7)
    assert len([event for event in events if event["name"] == "evaluate"]) == 1  # after round 6
    assert not [event for event in events if "backend_compile" in event["name"]]
    names = {event["args"]["op_name"] for event in events if "op_name" in event.get("args", {})}
    for scope in ("/sample/", "(local)/", "/aggregate/", "/evaluate/"):
        assert any(scope in name for name in names) and scope.encode() in xplane


@pytest.mark.exhaustive
def test_a_resumed_run_is_recorded(toy, plain, tmp_path, monkeypatch, capsys):
    """An unwritable folder is reported before compilation. A run without rounds is rejected."""
    arguments = [f"--config={toy}", f"--workdir={tmp_path / 'w'}"]
    with monkeypatch.context() as patch:
        stopping_after(4, patch)
        assert call(*arguments) == 130
    (tmp_path / "w" / "profile").write_text("")
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "compile", None)
        assert call(*arguments, "--resume", "--profile=2") == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'w' / 'profile'}: File exists\n"
    (tmp_path / "w" / "profile").unlink()
    assert call(*arguments, "--resume", "--profile=3") == 0
    assert comparable(tmp_path / "w") == plain
    assert min(blocks(recorded(tmp_path / "w")[0])) == 6  # of the four rounds left, one is a warmup
    assert call(*arguments, "--resume", "--profile=1") == 2
    assert "the run has no rounds left to record" in capsys.readouterr().err
    assert "a profile needs a workdir" in complaint(fedjax_lab.run, load_config(toy), profile=1)


def test_an_invalid_number_of_rounds_is_rejected(toy, tmp_path, capsys):
    for value, message in (
        ("0", "--profile must be from 1 to 8, the number of rounds left in the run; got 0"),
        ("few", "--profile must be a number of rounds, got few"),
    ):
        words = f"--config={toy}", f"--workdir={tmp_path / 'w'}", f"--profile={value}"
        assert message in refusal(capsys, *words)
        assert not (tmp_path / "w").exists()
    assert sweep.main(["sweep", f"--config={toy}", f"--out={tmp_path / 's'}", "--profile=1"]) == 2
    assert "unexpected argument '--profile=1'" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_profile_lies_within_one_stage(toy, tmp_path, capsys):
    """Between two stages, the next one is compiled. A profile of all rounds has no warmup."""
    sizes = {"num_clusters": 2, "encoder_rounds": 2, "classifier_rounds": 6}
    arguments = [f"--config={toy}:fedconcat", f"--workdir={tmp_path / 'w'}"]
    arguments += [f"--config.method.{key}={value}" for key, value in sizes.items()]
    assert call(*arguments, "--profile=7") == 2
    assert "from 1 to 6, the number of rounds left in its longest stage" in capsys.readouterr().err
    assert call(*arguments, "--profile=6") == 0
    assert "profile of rounds 3 to 8" in capsys.readouterr().out
    assert not [e for e in recorded(tmp_path / "w")[0] if "backend_compile" in e["name"]]
