"""Checks the draws of a random search, and which draw is chosen."""

from pathlib import Path

import finished_cells
import pytest
from children import ROOT
from inputs import complaint

from fedjax_lab import ranges
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.sweeping import sweep_folder, sweep_plan, sweep_tuning
from fedjax_lab.sweeping.sweep_plan import Shared

QUICK = Shared(str(ROOT / "configs/quickstart.py"), seeds=[3, 4, 5])


def contenders(methods, tune="random:5", on="validation", given=(), grid=None, shared=QUICK):
    search = sweep_tuning.parse(tune, on, given)
    cells = sweep_plan.plan(shared, methods, grid or {})
    return search, sweep_tuning.contenders(cells.values(), shared, search)


def drawn(contender, key):
    return [draw.grid[key] for draw in contender.draws]


def test_methods_get_equally_many_draws_and_share_the_values_of_common_settings():
    _, each = contenders(["fedavg", "fedprox", "moon"])
    assert [len(contender.draws) for contender in each] == [5, 5, 5]
    rates = [drawn(contender, "local.lr") for contender in each]
    assert rates[0] == rates[1] == rates[2] and len(set(rates[0])) == 5
    low, high = ranges.LEARNING_RATES["sgd"].values
    assert all(low <= float(rate) <= high for rate in rates[0])
    assert all(set(draw.grid) == {"method.mu", "local.lr"} for draw in each[1].draws)
    assert all(draw.seeds == [3] and draw.saved["seeds"] == [3] for draw in each[1].draws)
    assert each[1].draws[0].name.startswith("draws/fedprox,mu=")
    # mu has the same quantiles as for fedprox, but in moon's wider range.
    assert float(drawn(each[2], "method.mu")[0]) > float(drawn(each[1], "method.mu")[0])


def test_more_draws_keep_the_first_ones_and_another_stream_gives_others():
    (_, (few,)), (_, (many,)), (_, (others,)) = (
        contenders(["fedprox"], tune) for tune in ("random:3", "random:6", "random:3:1")
    )
    assert [d.name for d in many.draws[:3]] == [d.name for d in few.draws]
    assert not {d.name for d in others.draws} & {d.name for d in many.draws}


def test_given_settings_are_not_drawn_and_each_point_of_the_grid_has_draws():
    shared = QUICK._replace(overrides=[("local.lr", "0.1")])
    _, each = contenders(["fedprox"], grid={"partition.num_clients": ["5", "10"]}, shared=shared)
    assert [contender.cell.grid for contender in each] == [
        {"partition.num_clients": "5"},
        {"partition.num_clients": "10"},
    ]
    assert drawn(each[0], "method.mu") == drawn(each[1], "method.mu")
    assert all(draw.config.local.lr == 0.1 for draw in each[0].draws)
    _, (alone,) = contenders(["fedavg"], shared=shared)  # nothing is left to draw
    assert [draw.name for draw in alone.draws] == ["draws/fedavg"]


def test_range_flags_override_defaults_and_wrappers_add_ranges_of_their_base():
    given = ["method.mu=choice:7,8", "config.local.momentum=uniform:0,0.9"]
    _, (each,) = contenders(["fedprox"], given=given)
    assert set(drawn(each, "method.mu")) <= {"7", "8"}
    assert all(0 <= draw.config.local.momentum <= 0.9 for draw in each.draws)
    _, (wrapped,) = contenders(["client2vec"], grid={"method.base": ["fedprox"]})
    assert {"method.mu", "method.sampling_tau"} <= wrapped.draws[0].grid.keys()
    shared = QUICK._replace(overrides=[("local.optimizer", "adam")])
    _, (each,) = contenders(["fedavg"], shared=shared)
    assert max(map(float, drawn(each, "local.lr"))) <= ranges.ADAPTIVE.values[1]
    shared = QUICK._replace(overrides=[("partition.validation", "0")])
    search, (each,) = contenders(["fedprox"], on="test", shared=shared)
    assert search.on == "test" and len(each.draws) == 5  # needs no validation examples


@pytest.mark.parametrize(
    "more, message",
    [
        ({"tune": "random"}, "is not random:DRAWS"),
        ({"on": "vaildation"}, "did you mean 'validation'?"),
        ({"given": ["method.mo=log:1,2"]}, "no method of the sweep has it; did you mean"),
        ({"given": ["method.mu=log:0,2"]}, "--range=method.mu: a log-uniform range must begin"),
        ({"given": ["method.mu=log:1,2"] * 2}, "--range=method.mu is given twice"),
        ({"given": ["partition.num_clients=choice:5,6"]}, "--grid=partition.num_clients=VALUE"),
        ({"given": ["run.rounds=choice:5,6"]}, "this key cannot be tuned"),
        ({"given": ["method.mu=log:1,2"], "grid": {"method.mu": ["1"]}}, "a range in --range and"),
        ({"shared": QUICK._replace(overrides=[("partition.validation", "0")])}, "--config.partit"),
    ],
)
def test_bad_searches_are_rejected(more, message):
    error = complaint(contenders, ["fedprox"], **more)
    assert message in error and len(error) < 300


def test_ranges_of_a_user_defined_method(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = """
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import choice
RANGES = {"pull": choice(1.0, 2.0), "%s": choice(3.0)}
def one(task, *, pull: float = 0.0): return fedavg(task)
def two(task, *, push: float = 0.0): return fedavg(task)
"""
    Path("own.py").write_text(text % "push")
    _, (one, two) = contenders(["own.py:one", "own.py:two"])
    assert one.draws[0].grid.keys() == {"method.pull", "local.lr"}
    assert set(drawn(two, "method.push")) == {"3.0"}
    Path("own.py").write_text(text % "pusch")
    message = complaint(contenders, ["own.py:one"])
    assert "RANGES beside one: no setting 'pusch'; did you mean 'push" in message


# Choosing a draw.


def chosen(each, out, search):
    return sweep_tuning.chosen(each, out, QUICK, search)


def test_the_best_draw_on_validation_becomes_a_cell_with_all_seeds(tmp_path):
    search, (each,) = contenders(["fedprox"])
    assert sweep_tuning.waiting(each, tmp_path) == 5
    for draw, validation in zip(each.draws, (50.0, 70.0, 90.0, 90.0, 60.0), strict=True):
        # The test accuracies would choose the first draw.
        finished_cells.finish(draw, tmp_path, {3: 100 - validation}, validation)
    assert sweep_tuning.waiting(each, tmp_path) == 0
    cell = chosen(each, tmp_path, search)
    assert f"draws/{cell.name}" == each.draws[2].name and cell.seeds == [3, 4, 5]
    assert cell.config == each.draws[2].config
    made = {"by": "random:5", "on": "validation", "draws": 5, "diverged": 0, "seconds": 7.5}
    assert cell.note["tuned"] == {**made, "rounds": 5 * cell.config.run.rounds}
    assert sweep_tuning.seconds({"seconds": 6.0, "runs_together": 3}) == 2.0  # a run's share
    by_tests = chosen(each, tmp_path, search._replace(on="test"))
    assert f"draws/{by_tests.name}" == each.draws[0].name


def test_the_loss_decides_between_equal_accuracies_and_diverged_draws_are_not_chosen(tmp_path):
    search, (each,) = contenders(["fedprox"], "random:2")
    for draw, loss in zip(each.draws, (0.5, 0.4), strict=True):
        ids = {"id": 90.0, "id_loss": loss}
        way = {"per_seed": {"3": ids}, "mean": ids}
        finished_cells.finish(draw, tmp_path, {3: 80.0}, best_by_validation=way)
    assert f"draws/{chosen(each, tmp_path, search).name}" == each.draws[1].name
    tmp_path = tmp_path / "diverged"
    search, (each,) = contenders(["fedprox"], "random:3")
    diverged = sweep_folder.Outcome(sweep_folder.DIVERGED, "in round 1")
    for draw in each.draws[:2]:
        sweep_folder.record(diverged, tmp_path / draw.name)
    finished_cells.finish(each.draws[2], tmp_path, {3: 20.0}, 20.0)
    cell = chosen(each, tmp_path, search)
    assert f"draws/{cell.name}" == each.draws[2].name and cell.note["tuned"]["diverged"] == 2
    finished_cells.finish(each.draws[2], tmp_path, {3: 20.0}, 99.0, diverged={"round": 2})
    assert chosen(each, tmp_path, search) is None


def test_draws_of_another_seed_are_rejected(tmp_path):
    _, (each,) = contenders(["fedprox"], "random:1")
    draws = {draw.name: draw for draw in each.draws}
    sweep_folder.write_plan({}, draws, tmp_path)
    assert sweep_folder.check_folder(QUICK, draws, tmp_path).keys() == draws.keys()
    _, (other,) = contenders(["fedprox"], "random:1", shared=QUICK._replace(seeds=[9]))
    others = {d.name: d for d in other.draws}
    message = complaint(sweep_folder.check_folder, QUICK, others, tmp_path)
    assert "config.seeds is [3], not [9]" in message
    metric_rows.write_json(tmp_path / "sweep.json", {"cells": {"a": {"tuned": 1}}})
    message = complaint(sweep_folder.check_folder, QUICK, {}, tmp_path)
    assert "sweep.json cannot be used" in message
