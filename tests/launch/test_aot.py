"""Which runs can be compiled for absent accelerators, and what is said where one cannot."""

import json
import subprocess

import aot
import pytest
import targets
import toys


@pytest.fixture
def every_compiler(monkeypatch):
    monkeypatch.setattr(targets, "installed", lambda target: True)


@pytest.fixture
def config(tmp_path):
    toys.write_examples(tmp_path / "data.npz")
    return toys.write_config(tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target=v5:2x2"], "--target: no target 'v5:2x2'; did you mean 'v5e:2x2'?"),
        (["--target=v5e"], "no target 'v5e'"),
        (["--target=h100:2"], "no target 'h100:2'"),
        (["--target=v5e:2x"], "the topology must be like v5e:2x2"),
        (["--devices=5"], "--devices=5: v5e:2x2 has 4; 0 takes all"),
        (["--devices=-1"], "--devices=-1"),
        (["--workload=W11"], "--workload: no 'W11'; did you mean 'W1'?"),
        (["--program=round"], "--program: no 'round'; did you mean 'rounds'?"),
        (["--config.engine.chunks=4"], "did you mean 'engine.chunk'?"),
        (["--config.engine.strategy=chunk"], "did you mean 'chunked'?"),
        (["--config.local.lr=4"], "--config: no 'local.lr'"),
        (["--config=configs/quickstart.py"], "name either --config=FILE.py[:METHOD] or"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_one_line(capsys, every_compiler, flags, message):
    workload = [] if flags[0].startswith("--workload") else ["--workload=W2"]
    assert aot.main([*workload, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_compiler_is_named_with_its_extra(capsys, monkeypatch):
    monkeypatch.setattr(targets, "installed", lambda target: False)
    assert aot.main(["--target=v5e:2x2", "--workload=W2"]) == 2
    assert "pip install 'fedjax_lab[aot-tpu]'" in capsys.readouterr().err
    assert aot.main(["--target=h100", "--workload=W2"]) == 2
    assert "pip install 'fedjax_lab[aot-cuda]'" in capsys.readouterr().err


def test_a_config_is_checked_before_anything_is_compiled(capsys, every_compiler, config):
    assert aot.main([f"--config={config}", "--config.local.lr=fast"]) == 2
    assert "config.local.lr" in capsys.readouterr().err


def stopped(code, stderr, stdout=""):
    return lambda *args, **options: subprocess.CompletedProcess([], code, stdout, stderr)


def test_a_compiler_that_aborts_is_reported_and_the_next_program_compiled(
    capsys, monkeypatch, every_compiler
):
    fatal = "F0000 00:00:1 tiling.cc:12] Check failed: a == b"
    monkeypatch.setattr(aot.subprocess, "run", stopped(-6, f"I0000 noise\n{fatal}\n*** Begin\n"))
    assert aot.main(["--workload=W2"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["program"] for line in lines] == ["rounds", "evaluation"]
    assert all(line == {**line, "compiled": False, "workload": "W2"} for line in lines)
    assert lines[0]["error"] == f"signal 6: {fatal}"


def test_what_only_building_finds_is_bad_usage_too(capsys, monkeypatch, every_compiler):
    monkeypatch.setattr(aot.subprocess, "run", stopped(2, "warning\nerror: no PACS here\n"))
    assert aot.main(["--workload=W2"]) == 2
    assert capsys.readouterr().err == "error: no PACS here\n"
