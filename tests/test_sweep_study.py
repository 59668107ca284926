"""Checks the search of a sweep by Optuna: its draws, its shares, and which draw is chosen."""

import itertools
import json
import sys
import time

import finished_cells
import optional
import pytest
import toys
from children import ROOT
from inputs import complaint

from fedjax_lab import STOP, ranges
from fedjax_lab.commands import sweep
from fedjax_lab.running.storage import lock
from fedjax_lab.sweeping import sweep_folder, sweep_plan, sweep_study, sweep_tuning
from fedjax_lab.sweeping.sweep_folder import DIVERGED, Outcome
from fedjax_lab.sweeping.sweep_plan import Shared

optional.module("optuna")

QUICK = Shared(str(ROOT / "configs/quickstart.py"), seeds=[3, 4, 5])


def begun(out, tune="tpe:4", share="0/1", given=()):
    search = sweep_tuning.parse(tune, "validation", given)
    cells = sweep_plan.plan(QUICK, ["fedprox"], {})
    (contender,) = sweep_tuning.contenders(cells.values(), QUICK, search)
    assert contender.draws == []
    return sweep_study.begin(contender, search, QUICK, out, share)


def play(study, accuracies):
    """Makes draws with these accuracies and returns their cells; None: the draw diverges."""
    cells = []
    for accuracy, (cell, trial) in zip(accuracies, sweep_study.upcoming(study), strict=False):
        cells.append(cell)
        if accuracy is not None:
            finished_cells.finish(cell, study.out, {3: 0.0}, accuracy)
        outcome = Outcome(DIVERGED if accuracy is None else 0)
        sweep_folder.record(outcome, study.out / cell.name)
        sweep_study.tell(study, trial, cell, outcome)
    return cells


def test_shares_make_the_draws_of_one_study_and_the_best_one_is_chosen(tmp_path):
    first = play(begun(tmp_path, share="0/2"), [40.0, None, 90.0])  # the quota is two
    second = play(begun(tmp_path, share="1/2"), [70.0, 60.0, 90.0])
    assert len(first) == len(second) == 2
    study = begun(tmp_path)  # of the whole sweep
    assert sweep_study.left(study) == ([], 0)
    contender = sweep_study.searched(study)
    assert {draw.name for draw in contender.draws} == {cell.name for cell in first + second}
    assert sweep_tuning.waiting(contender, tmp_path) == 0
    best = sweep_tuning.chosen(contender, tmp_path, QUICK, study.search)
    assert f"draws/{best.name}" == second[0].name and best.seeds == [3, 4, 5]
    assert best.note["tuned"]["by"] == "tpe:4" and best.note["tuned"]["diverged"] == 1
    low, high = ranges.LEARNING_RATES["sgd"].values
    assert all(low <= draw.config.local.lr <= high for draw in contender.draws)
    assert sweep_study.left(begun(tmp_path, "tpe:5")) == ([], 1)  # more draws of the same study
    assert sweep_study.left(begun(tmp_path, "tpe:4:1")) == ([], 4)


def test_an_interrupted_draw_is_continued_and_a_failed_one_is_replaced(tmp_path):
    study = begun(tmp_path, "tpe:2")
    (cell, trial), *_ = sweep_study.upcoming(study)  # the second one is begun, too
    again = begun(tmp_path, "tpe:2")
    interrupted, new = sweep_study.left(again)
    assert len(interrupted) == 2 and new == 0
    assert [c.name for c, _ in sweep_study.upcoming(again)][0] == cell.name
    sweep_study.tell(again, trial, cell, Outcome(1, "no memory"))
    contender = sweep_study.searched(again)
    assert contender.missing == 1 and contender.draws == [cell]
    assert sweep_tuning.waiting(contender, tmp_path) == 2
    assert [len(sweep_study.left(again)[0]), sweep_study.left(again)[1]] == [1, 1]


def test_a_draw_below_the_median_ends_early_and_is_not_chosen(tmp_path):
    study = begun(tmp_path, "tpe:7")
    rounds = study.contender.cell.config.run.rounds
    draws = sweep_study.upcoming(study)
    for number in range(6):
        cell, trial = next(draws)
        report = sweep_study.watch(study, trial)
        accuracy = 10.0 if number == 5 else 50.0 + number
        answers = [report({"round": t, "id": accuracy}, None) for t in (1, rounds // 2)]
        assert report({"round": rounds}, None) is None  # of a stage that is not scored
        assert answers == [None, STOP if number == 5 else None]
        stopped = {"stopped": {"rule": "on_evaluation", "round": 1}} if number == 5 else {}
        finished_cells.finish(cell, tmp_path, {3: 0.0}, accuracy + 50 * (number == 5), **stopped)
        sweep_study.tell(study, trial, cell, Outcome(0))
    contender = sweep_study.searched(study)
    assert contender.missing == 1 and study.trials.trials[5].state.name == "PRUNED"
    best = sweep_tuning.chosen(contender, tmp_path, QUICK, study.search)
    assert f"draws/{best.name}" != cell.name and best.note["tuned"]["diverged"] == 0


SAME = "local.lr=choice:0.1"


def ending(study, codes):
    """A `Run` of two draws at a time, which end in their order with these codes."""

    def run(cells, watch):
        begun = list(itertools.islice(cells, 2))
        for cell, code in zip(itertools.chain(begun, cells), codes, strict=False):
            if code == 0:
                finished_cells.finish(cell, study.out, {3: 0.0}, 50.0)
            yield cell, Outcome(code)

    return run


def test_equal_draws_in_flight_are_one_run_whose_result_all_get(tmp_path):
    study = begun(tmp_path, "tpe:6", given=["method.mu=choice:1,2", SAME])
    results = list(sweep_study.play(study, ending(study, [0] * 6)))
    assert len(results) == 6 and {outcome.code for _, outcome in results} == {0}
    assert [trial.value for trial in study.trials.trials] == [50.0] * 6
    assert len({cell.name for cell, _ in results}) == 2


@pytest.mark.parametrize("killed", [False, True])
def test_a_draw_equal_to_one_that_another_share_runs_waits_for_it(killed, tmp_path, monkeypatch):
    held, given = ["0/2", "1/2"], ["method.mu=choice:1", SAME]
    monkeypatch.setattr(lock, "held_shares", lambda out: held)
    study, other = (begun(tmp_path, "tpe:2", share, given) for share in ("0/2", "1/2"))
    ((cell, trial),) = sweep_study.upcoming(other)
    assert sweep_study._claim(other, cell, trial)
    asleep = []

    def sleep(seconds):
        asleep.append(len(study.trials.trials))
        if killed:
            held.remove(other.share)
        else:
            sweep_study.tell(other, trial, cell, Outcome(DIVERGED))

    monkeypatch.setattr(time, "sleep", sleep)
    results = list(sweep_study.play(study, ending(study, [0])))
    assert results == [(cell, Outcome(0))] and asleep == [2]


def test_share_0_continues_lost_draws_and_incomplete_ones_fail(tmp_path):
    study = begun(tmp_path, "tpe:4")
    lost = sweep_study._asked(study)
    study.trials.ask()  # killed before a value was chosen
    (_, own), *_ = sweep_study.upcoming(begun(tmp_path, "tpe:4", "1/2"))
    states = [trial.state.name for trial in study.trials.trials]
    assert states == ["RUNNING", "RUNNING", "RUNNING", "RUNNING"]
    interrupted, new = sweep_study.left(begun(tmp_path, "tpe:4", "0/2"))
    assert [trial.number for trial in interrupted] == [lost.number] and new == 1
    assert study.trials.trials[1].state.name == "FAIL"
    assert study.trials.trials[own.number].user_attrs["share"] == "1/2"


def test_a_share_waits_only_for_running_commands_with_draws_left(tmp_path, monkeypatch):
    held, waited = ["0/2", "1/2"], []
    monkeypatch.setattr(lock, "held_shares", lambda out: held)
    first, second = (begun(tmp_path, share=share) for share in ("0/2", "1/2"))
    assert len(list(sweep_study.play(first, ending(first, [0, 1])))) == 2

    def sleep(seconds):
        waited.append(list(sweep_study.play(second, ending(second, [1, 0]))))

    monkeypatch.setattr(time, "sleep", sleep)
    for study in (first, second):  # two draws have failed, but nobody waits for those
        contender = sweep_study.searched(study)
        assert contender.missing == 0 and len(contender.draws) == 4 and len(waited) == 1
        assert sweep_tuning.waiting(contender, tmp_path) == 2
    held.remove("1/2")  # killed, before it replaces its draw
    again = begun(tmp_path, share="0/2"), begun(tmp_path, share="1/2")
    assert sweep_study.searched(again[0]).missing == 0 and len(waited) == 1


def test_other_ranges_are_another_study(tmp_path):
    begun(tmp_path, given=["method.mu=choice:1,2"])
    message = complaint(begun, tmp_path, given=["method.mu=log:0.1,2"])
    assert "has been searched in other ranges" in message and "--tune=tpe:4:1" in message
    play(begun(tmp_path, "tpe:4:1", given=["method.mu=log:0.1,2"]), [1.0])


toy = toys.config_file(run={"rounds": 2, "eval_every": 1, "cohort": 3})


@pytest.mark.exhaustive
def test_a_search_trains_its_draws_and_the_best_one(toy, tmp_path, capsys):
    arguments = ["--methods=fedprox", "--tune=tpe:2", "--config.partition.validation=0.2"]
    out = tmp_path / "out"
    call = ["sweep", f"--config={toy}", f"--out={out}", *arguments]
    assert sweep.main(call) == 0
    assert "the best of 2 draws (tpe:2)" in capsys.readouterr().out
    plan = json.loads((out / "sweep.json").read_text())["cells"]
    assert sum(name.startswith("draws/") for name in plan) == 2 and len(plan) == 3
    assert sweep.main(call) == 0
    assert "0 of 2 draws to run" in capsys.readouterr().out
    assert sweep.main([*call, "--together"]) == 2
    assert sweep.main(["sweep", f"--config={toy}", "--out=gs://a/b", *arguments]) == 2


@pytest.mark.exhaustive
def test_workers_run_equal_draws_once_and_a_share_names_the_draws_not_made(toy, tmp_path, capsys):
    arguments = ["--methods=fedprox", "--tune=tpe:4", "--config.partition.validation=0.2"]
    arguments += ["--range=method.mu=choice:0.1,1", f"--range={SAME}", f"--out={tmp_path}"]
    call = ["sweep", f"--config={toy}", "--workers=2", *arguments]
    assert sweep.main([*call, "--share=0/2"]) == 1
    said = "fedprox: 2 of 4 draws are not made yet; run the other shares, then repeat this command"
    assert said in capsys.readouterr().out
    assert sweep.main([*call, "--share=1/2"]) == 0
    assert sweep.main([*call, "--share=0/2"]) == 0
    plan = json.loads((tmp_path / "sweep.json").read_text())["cells"]
    assert 1 <= sum(name.startswith("draws/") for name in plan) <= 2
    assert "fedprox" in capsys.readouterr().out


def test_a_search_without_optuna_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install 'fedjax_lab[tune]'" in complaint(sweep_study.check)
