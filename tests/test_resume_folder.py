"""The folder of --resume: one without a run is refused, unless --resume_or_start is given."""

import pytest
import toys
from absl.testing import flagsaver

from fedjax_lab import main
from fedjax_lab.errors import BadInput
from fedjax_lab.running import growth


def call(*arguments):
    with flagsaver.flagsaver():
        return main.main(["main", *arguments])


def refusal(capsys, *arguments):
    assert call(*arguments) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    toys.write_examples(tmp_path / "data.npz")
    return toys.write_config(tmp_path, run={"rounds": 1, "eval_every": 1, "cohort": 3})


def begin(folder, name="config.json"):
    folder.mkdir(parents=True)
    (folder / name).write_text("{}")


def test_a_folder_that_is_none_is_refused_and_not_made(toy, tmp_path, capsys):
    begin(tmp_path / "runs/first")
    (tmp_path / "runs/empty").mkdir()
    for name in ("frist", "empty", "first/plots", "other"):
        message = refusal(capsys, f"--config={toy}", "--resume", f"--workdir=runs/{name}")
        assert f"runs/{name} holds no run to resume: it has no config.json" in message
        assert "--resume_or_start starts a new run there" in message
        assert ("did you mean runs/first?" in message) == (name == "frist")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["empty", "first"]
    assert not any((tmp_path / "runs/empty").iterdir())


@pytest.mark.parametrize("name", ["config.json", "fingerprint.json", ".lock"])
def test_a_folder_in_which_a_run_began_is_accepted(name, tmp_path):
    with pytest.raises(BadInput, match="holds no run"):
        growth.check_begun(tmp_path / "run")
    begin(tmp_path / "run", name)
    growth.check_begun(tmp_path / "run")


def test_each_flag_needs_a_folder_and_a_config(toy, capsys):
    for flag in ("--resume", "--resume_or_start"):
        message = refusal(capsys, f"--config={toy}", flag)
        assert f"{flag} needs the folder of the run: --workdir=DIR" in message
    message = refusal(capsys, "--resume_or_start", "--workdir=new")
    assert "new holds no run to resume: it has no config.json" in message


@pytest.mark.slow
def test_one_command_starts_a_run_and_resumes_it(toy, tmp_path, capsys):
    words = [f"--config={toy}", "--resume_or_start", "--workdir=run"]
    for rounds in (1, 2):
        assert call(*words, f"--config.run.rounds={rounds}") == 0
        assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == rounds
    assert "round 1/2" not in capsys.readouterr().out
