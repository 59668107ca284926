"""Checks rules that end a run early: when they are met, what is saved, and what --resume does."""

import json
from types import SimpleNamespace

import pytest
import toys
from commands import call, comparable, contents, without_clock
from inputs import complaint
from stops import stopping_after

import fedjax_lab
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import runner, stopping

RUN = {"rounds": 12, "eval_every": 2}


def experiment(seeds=(0,), stages=("train",), **rules):
    run = {"patience": 0, "target": 0.0, **rules}
    named = tuple(SimpleNamespace(name=name) for name in stages)
    simulation = SimpleNamespace(stages=named, seed_numbers=list(seeds))
    return SimpleNamespace(
        config=SimpleNamespace(run=SimpleNamespace(**run)), simulation=simulation
    )


def rows(stage="train", **validation):
    """rows(s0=[50, 60]): the validation accuracies of seed 0 after two evaluations."""
    return [
        {"round": 2 * i, "seed": int(seed[1:]), "stage": stage, "id": score, "global": score}
        for seed, scores in validation.items()
        for i, score in enumerate(scores, 1)
    ]


@pytest.mark.parametrize(
    "scores, rule",
    [
        ([50, 60, 60, 59], "patience"),
        ([50, 60, 59, 61, 60], ""),
        ([50, 60, 59, 58, 70], "patience"),  # it would have ended before the 70
        ([50, 60, 90], "target"),
        ([], ""),
    ],
)
def test_patience_and_target_of_one_seed(scores, rule):
    assert stopping.rule_met(experiment(patience=2, target=90.0), rows(s0=scores)) == rule


def test_a_run_ends_when_each_seed_alone_would_have_ended():
    two = experiment((0, 1), patience=2, target=90.0)
    assert stopping.rule_met(two, rows(s0=[50, 49, 48, 70], s1=[50, 51, 52, 53])) == ""
    assert stopping.rule_met(two, rows(s0=[50, 49, 48, 70], s1=[50, 51, 52, 95])) == "target"
    assert stopping.rule_met(two, rows(s0=[95, 49], s1=[50, 49])) == ""
    assert stopping.rule_met(two, rows(s0=[95, 49, 48], s1=[50, 49, 48])) == "patience"
    assert stopping.rule_met(experiment((0, 1)), rows(s0=[100] * 9, s1=[100] * 9)) == ""
    # Rules apply only to the last stage.
    two = experiment(stages=("features", "head"), patience=2, target=90.0)
    first = rows("features", s0=[95, 94, 93, 92])
    for head, rule in (([], ""), ([50, 50], ""), ([50, 50, 50], "patience")):
        assert stopping.rule_met(two, first + rows("head", s0=head)) == rule


def test_invalid_rules_are_rejected():
    for run, message in (
        ({"patience": 3}, "--config.partition.validation=0.1"),
        ({"patience": -1}, "config.run.patience must be at least 0"),
        ({"target": -1.0}, "config.run.target must be at least 0"),
        ({"max_seconds": -1.0}, "config.run.max_seconds must be at least 0"),
    ):
        assert message in complaint(resolve, {"run": run})


toy = toys.config_file(partition={"validation": 0.2}, run=RUN)


@pytest.fixture(scope="module")
def whole(toy):
    """The rows of the run without any rule."""
    return fedjax_lab.run(load_config(toy), seeds=[0, 1], quiet=True).metrics


def a_target(whole):
    """An accuracy that both seeds have reached after 4 rounds, but not both after 2."""
    by_round = {n: [r["accuracy"]["mean"] for r in whole if r["round"] == n] for n in (2, 4)}
    target = min(max(by_round[2][i], by_round[4][i]) for i in (0, 1))
    assert min(by_round[2]) < target
    return target


@pytest.mark.exhaustive
def test_a_target_ends_a_run_and_a_resumed_one_after_the_same_round(
    toy, whole, tmp_path, capsys, monkeypatch
):
    target = f"--config.run.target={a_target(whole)}"
    arguments = [f"--config={toy}", "--seeds=0,1", target]
    assert call(*arguments, f"--workdir={tmp_path / 'a'}") == 0
    out = capsys.readouterr().out
    assert "stopped by target after round 4" in out and "4 rounds, stopped by target, in" in out
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["stopped"] == {"rule": "target", "round": 4} and summary["rounds"] == 4
    assert comparable(tmp_path / "a") == without_clock(whole[:4])
    with monkeypatch.context() as patch:
        stopping_after(3, patch)
        assert call(*arguments, f"--workdir={tmp_path / 'b'}") == 130
    assert call(*arguments, f"--workdir={tmp_path / 'b'}", "--resume") == 0
    assert comparable(tmp_path / "b") == comparable(tmp_path / "a")
    before = contents(tmp_path / "a")
    assert call(*arguments, f"--workdir={tmp_path / 'a'}", "--resume") == 0
    assert contents(tmp_path / "a") == before
    (tmp_path / "a/summary.json").unlink()  # as if the run was killed before writing it
    assert call(*arguments, f"--workdir={tmp_path / 'a'}", "--resume") == 0
    again = json.loads((tmp_path / "a/summary.json").read_text())
    assert again["stopped"] == summary["stopped"] and again["last"] == summary["last"]
    assert call(*arguments[:2], f"--workdir={tmp_path / 'a'}", "--resume") == 0  # without the rule
    assert comparable(tmp_path / "a") == without_clock(whole)
    assert "stopped" not in json.loads((tmp_path / "a/summary.json").read_text())


def is_over_after(rounds, monkeypatch):
    """Makes the time limit end after this number of rounds."""
    play = runner.Engine.play

    def counted(self, at_most):
        play(self, min(at_most, rounds - self.played))
        patch.setattr(stopping, "is_past", lambda end: self.played >= rounds)

    patch = monkeypatch
    patch.setattr(stopping, "is_past", lambda end: False)
    patch.setattr(runner.Engine, "play", counted)


@pytest.mark.slow
def test_the_time_limit_saves_the_state(toy, whole, tmp_path, capsys, monkeypatch):
    arguments = [f"--config={toy}", "--seeds=0,1", f"--workdir={tmp_path / 'a'}"]
    with monkeypatch.context() as patch:
        is_over_after(1, patch)
        assert call(*arguments, "--config.run.max_seconds=1") == 130  # nothing to summarize
    error = capsys.readouterr().err
    assert "stopped by max_seconds after round 1 of 12, before the first evaluation" in error
    assert "the same command" in error and error.count("\n") == 1
    with monkeypatch.context() as patch:
        is_over_after(5, patch)
        assert call(*arguments, "--config.run.max_seconds=9", "--resume") == 0
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["stopped"] == {"rule": "max_seconds", "round": 5}
    assert [row["round"] for row in comparable(tmp_path / "a")] == [2, 2, 4, 4]
    assert call(*arguments, "--config.run.max_seconds=1e9", "--resume") == 0
    assert comparable(tmp_path / "a") == without_clock(whole)
    assert "stopped" not in json.loads((tmp_path / "a/summary.json").read_text())
