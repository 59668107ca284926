"""The command line as scripts use it: files, exit codes, one-line errors, kill and resume."""

import json
import os
import re
import signal
import time

import numpy as np
import pytest
import toys
from absl.flags import FLAGS
from children import finish, start
from commands import call, comparable, contents, refusal, without_clock

import fedjax_lab
from fedjax_lab import main
from fedjax_lab.commands import arguments, report
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import interrupts
from fedjax_lab.running.storage import metric_rows

NEW = ("--config.partition.new_clients=0.4", "--config.run.rounds=2", "--config.run.eval_every=1")


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The config file of a short run on a user's data."""
    folder = tmp_path_factory.mktemp("toy")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 600)
    x = (2 * rng.normal(size=(3, 5)))[y] + rng.normal(size=(600, 5))
    domain = np.array(["north", "south"])[rng.integers(0, 2, 600)]
    np.savez(folder / "data.npz", x=x.astype(np.float32), y=y, domain=domain)
    run = {"rounds": 8, "eval_every": 3, "cohort": 3}
    return toys.write_config(folder, partition={"validation": 0.2}, run=run)


@pytest.mark.slow
def test_a_run_writes_its_files(toy, tmp_path, capsys):
    assert call(f"--config={toy}", f"--workdir={tmp_path / 'a'}", "--seeds=0,1") == 0
    out = capsys.readouterr().out
    assert "round 8/8" in out and "north" in out and str(tmp_path / "a") in out
    rows = metric_rows.read_metrics(tmp_path / "a/metrics.jsonl")
    assert [(r["round"], r["seed"]) for r in rows] == [(r, s) for r in (3, 6, 8) for s in (0, 1)]
    row = rows[-1]
    spread = {"mean", "weighted", "worst10", "min", "max", "variance", "gini", "per_client"}
    assert set(row["accuracy"]) == spread
    assert set(row["loss"]) == set(row["accuracy"])
    assert set(row["domains"]) == set(row["domains_loss"]) == {"north", "south"}
    assert 0 < row["global_loss"] < 2 and 0 < row["id_loss"] < 2
    assert 0 < row["global"] <= 100 and 0 < row["id"] <= 100
    per_round = 3 * 4 * (5 * 8 + 8 + 8 * 3 + 3)  # three clients, four bytes for each parameter
    assert row["bytes_up"] == row["bytes_down"] == 8 * per_round
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    for way in ("last", "best_by_validation", "max_over_rounds"):
        assert set(summary[way]["per_seed"]) == {"0", "1"}
        two = [summary[way]["per_seed"][s]["accuracy"]["mean"] for s in "01"]
        assert summary[way]["mean"]["accuracy"]["mean"] == pytest.approx(np.mean(two))
        assert summary[way]["std"]["accuracy"]["mean"] == pytest.approx(np.std(two, ddof=1))
    for key in ("compile_seconds", "examples_per_second", "utilisation", "peak_memory_bytes"):
        assert summary[key] > 0
    assert summary["versions"]["jax"]
    assert summary["data"].keys() == {"name", "license", "citation", "fingerprint"}
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert config["method"] == {"name": "fedavg"} and config["seeds"] == [0, 1]
    assert (tmp_path / "a/plots/learning_curve.png").stat().st_size > 5000
    assert (tmp_path / "a/checkpoints/8").is_dir()


@pytest.mark.exhaustive
def test_a_run_from_python_without_files_equals_that_of_the_command(toy, tmp_path):
    config = load_config(f"{toy}:fedprox")
    result = fedjax_lab.run(config, seeds=[0], quiet=True)
    assert result.workdir is None and result.metrics[-1]["round"] == 8
    assert call(f"--config={toy}:fedprox", f"--workdir={tmp_path / 'b'}") == 0
    assert without_clock(result.metrics) == comparable(tmp_path / "b")


def test_partition_only_prints_and_plots_the_partition(toy, tmp_path, capsys):
    workdir = f"--workdir={tmp_path / 'p'}"
    assert call(f"--config={toy}", workdir, "--partition_only", NEW[0]) == 0
    out = capsys.readouterr().out
    assert "examples per client" in out and (tmp_path / "p/partition.png").stat().st_size > 5000
    trained, new = out.split("new clients, which take no part in training:")
    assert re.findall(r"^ +(\d) ", trained, re.MULTILINE) == ["0", "1", "2", "3"]
    assert re.findall(r"^ +(\d) ", new, re.MULTILINE) == ["0", "1"]


BAD = [
    (["--config={toy}:fedprx"], "did you mean 'fedprox'?"),
    (["--config={toy}", "--confg=3"], "confg"),
    (["--config={toy}", "--seeds=4294967296"], "seeds"),
    (["--config={toy}", "--seeds=1,1"], "seed 1 is given more than once"),
    (["--config={toy}", "--seeds=4-0"], "got 4-0; for example 0,1,2 or 0-4, a range"),
    (["--config={toy}", "--seeds=0-9999999999"], "a range of at most 10000"),
    (["--config={toy}", "--config.metod.mu=1"], "did you mean 'method'?"),
    (["--config={toy}", "--config.local.lr=fast"], "config.local.lr must be of type float"),
    (["--config={toy}", "--config.run.rounds=0"], "config.run.rounds must be above 0"),
    (["--config={toy}", "--config.run.cohort=7"], "config.partition.num_clients=6"),
    (["--config={toy}", "--config.run.metrics=ece,top6"], "did you mean 'top5'?"),
    (["--config={toy}", "--config.partition.validation=1"], "config.partition.validation"),
    (["--config={toy}", "--config.method.name=fedprox", "--config.method.mu"], "needs a value"),
    (["--config={toy}", "--noconfig.local.lr"], "--noconfig.local.lr is not a flag"),
    (["--config={toy}", "--noconfig.local.lr=1"], "--noconfig.local.lr takes no value"),
    (["--config={toy}", "--flagfile=/no/such"], "/no/such"),
    (["--config=quickstrat"], "no config file 'quickstrat'; did you mean 'quickstart'?"),
    (["--config="], "--config is missing"),
    (["--config=" + "x" * 5000], "File name too long"),
    (["--config={toy}", "--" + "x" * 5000], "Unknown command line flag 'xxx"),
    (["--config={toy}", *["--sead=1"] * 400], "Unknown command line flag 'sead'. Did you mean"),
    (["--config={toy}", "x" * 5000], "all arguments are --flags"),
    (["--config={toy}", "--seeds=" + "9" * 5000], "--seeds must be whole numbers, got 999"),
    (["--config={toy}", "--config.run.rounds={{[]: 1}}"], "must be of type int, got '{{[]: 1}}'"),
    (["--config={toy}", "--config.data.path=a\0b"], "config.data.path must not have a NUL byte"),
    (["--config={toy}", "--config." + "k" * 5000 + "=1"], "no config section 'kkk"),
]


@pytest.mark.parametrize("arguments, said", BAD, ids=lambda value: str(value)[-40:])
def test_bad_input_is_a_one_line_error_with_exit_code_2(
    arguments, said, toy, tmp_path, capsys, monkeypatch
):
    """No folder is created, neither a given one nor the default one."""
    monkeypatch.chdir(tmp_path)
    arguments = [a.format(toy=toy) for a in arguments]
    for more in ([f"--workdir={tmp_path / 'new'}"], []):
        error = refusal(capsys, *arguments, *more)
        assert said.replace("{{", "{").replace("}}", "}") in error and len(error) < 600
        assert not list(tmp_path.iterdir())


def test_an_unusable_workdir_is_an_error(toy, tmp_path, capsys, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(experiment, "build", lambda *_: pytest.fail("began to build"))
    arguments = f"--config={toy}", f"--workdir={file}/below/it"
    assert f"{file} is not a folder" in refusal(capsys, *arguments)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    error = refusal(capsys, f"--config={toy}", f"--workdir={tmp_path / 'new' / 'run'}")
    assert f"{tmp_path} is not writable\n" in error


@pytest.fixture(scope="module")
def finished(toy, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished") / "run"
    assert call(f"--config={toy}", f"--workdir={workdir}", "--config.run.rounds=2") == 0
    return workdir


def test_help_explains_every_flag(capsys):
    assert call("--help") == 0
    text = capsys.readouterr().out
    flags = [flag for flag in FLAGS.get_flags_for_module(main.__name__)]
    assert len(flags) > 7
    for flag in flags:
        name = f"no{flag.name}" if flag.value is True else flag.name
        assert re.search(rf"^--{name}\b( |$)", text, re.M), name


def test_overrides_have_the_syntax_of_config_flags_and_seeds_may_be_ranges():
    words = ["--config.a.x=1", "--config.a.y", "-2", "--config.a.b", "-config.a.c"]
    pairs = [("a.x", "1"), ("a.y", "-2"), ("a.b", True), ("a.c", True), ("a.d", False)]
    given = ["main", "--resume", *words, "--noconfig.a.d"]
    assert arguments.split_overrides(given) == (["main", "--resume"], pairs)
    for text, seeds in (("0-4", [0, 1, 2, 3, 4]), ("7,1-2", [7, 1, 2]), ("1e1", [10])):
        assert arguments.parse_seeds(text.split(",")) == seeds


def test_a_flagfile_may_set_every_flag(toy, tmp_path, monkeypatch):
    (tmp_path / "more.flags").write_text(
        "--config.method.name=fedlc\n--config.method.exclude_true\n"
    )
    (tmp_path / "all.flags").write_text(
        f"# a comment\n\n--config={toy}\n--seeds=0-2\n--flagfile={tmp_path}/more.flags\n"
        "--config.local.lr=0.5\n"
    )
    given = []
    monkeypatch.setattr(main, "_train", lambda *job: given.append(job) or (0, False))
    assert call(f"--flagfile={tmp_path}/all.flags", "--config.local.lr=0.25") == 0
    ((config, seeds, *_),) = given
    assert (seeds, config.local.lr, config.method.exclude_true) == ([0, 1, 2], 0.25, True)


@pytest.mark.exhaustive
def test_default_folders_never_clash(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    for _ in range(2):
        assert call(f"--config={toy}", "--config.run.rounds=2") == 0
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert folders == ["toy-fedavg-now", "toy-fedavg-now-2"]


@pytest.mark.slow
def test_a_used_workdir_and_a_resume_with_another_config_are_rejected(finished, toy, capsys):
    arguments, before = [f"--config={toy}", f"--workdir={finished}"], contents(finished)
    assert "--resume" in refusal(capsys, *arguments, "--config.run.rounds=2")
    assert "config.local.lr" in refusal(capsys, *arguments, "--config.local.lr=0.2", "--resume")
    assert call(*arguments, "--config.run.rounds=2", "--resume") == 0  # it is finished
    assert contents(finished) == before


@pytest.mark.slow
def test_divergence_is_a_one_line_error_and_keeps_the_rounds_before(toy, tmp_path, capsys):
    wild = ["--config.local.lr=60.0", "--config.run.eval_every=1"]
    code = call(f"--config={toy}:fedprox", f"--workdir={tmp_path / 'd'}", *wild)
    error = capsys.readouterr().err
    assert code == 3 and error.count("\n") == 1
    diverged = int(re.search(r"fedprox diverged in round (\d+)", error)[1])
    rows = metric_rows.read_metrics(tmp_path / "d/metrics.jsonl")
    assert [row["round"] for row in rows] == list(range(1, diverged)) and diverged > 1


LONG = ["--config.run.rounds=300", "--config.run.eval_every=5", "--seeds=0,1"]


@pytest.mark.slow
def test_a_killed_and_then_interrupted_run_resumes_exactly(toy, tmp_path):
    def command(name, *more):
        return start(
            "-m", "fedjax_lab.main", f"--config={toy}:ifca", *LONG, f"--workdir={name}", *more
        )

    def wait_for(reached, process):
        while not reached() and process.poll() is None:
            time.sleep(0.005)

    whole, workdir = command(tmp_path / "whole"), tmp_path / "run"
    process = command(workdir)
    wait_for(lambda: list((workdir / "checkpoints").glob("[0-9]*")), process)
    process.kill()
    finish(process, -9)
    rows = len(comparable(workdir))
    process = command(workdir, "--resume")
    wait_for(lambda: len(comparable(workdir)) > rows, process)
    process.send_signal(signal.SIGINT)
    out, error = finish(process, 130)
    assert out.count(interrupts.STOPPING) == 1
    again = f"continue with the same command and --workdir={workdir} --resume"
    assert error.startswith("interrupted after round ") and error.endswith(f" of 300; {again}\n")
    finish(whole)
    assert rows < len(comparable(workdir)) < len(comparable(tmp_path / "whole"))
    finish(command(workdir, "--resume"))
    assert comparable(workdir) == comparable(tmp_path / "whole")
    assert json.loads((workdir / "summary.json").read_text())["rounds"] == 300


@pytest.mark.exhaustive
def test_scores_of_new_clients_are_written_and_shown(toy, tmp_path, capsys):
    folder = tmp_path / "run"
    assert call(f"--config={toy}:finetune", *NEW, f"--workdir={folder}") == 0
    out = capsys.readouterr().out
    assert re.search(r"^new clients  ", out, re.MULTILINE) and "new clients, tuned" in out
    for row in comparable(folder):
        assert len(row["accuracy"]["per_client"]) == 4
        assert len(row["new_per_client"]) == len(row["new_tuned_loss_per_client"]) == 2
    assert "new" in json.loads((folder / "summary.json").read_text())["last"]["mean"]
    assert report.main([str(folder), "--measure=new_tuned"]) == 0
    out = capsys.readouterr().out
    (table,) = [part for part in out.split("\n\n") if part.startswith("accuracy, %")]
    assert re.search(r"^ +n  new, tuned .*  new$", table, re.MULTILINE)
    assert call(f"--config={toy}:fedper", *NEW, f"--workdir={tmp_path / 'none'}") == 0
    out = capsys.readouterr().out
    assert "the 2 new clients (config.partition.new_clients) are not scored" in out
    assert "new clients  " not in out
