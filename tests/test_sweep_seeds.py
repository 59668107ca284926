"""Checks when cells of a sweep get more seeds, and which seeds they get."""

import finished_cells
import numpy as np
import pytest
from children import ROOT
from inputs import complaint

from fedjax_lab.running import sweep_folder, sweep_plan, sweep_seeds
from fedjax_lab.running.sweep_plan import Shared

QUICK = Shared(str(ROOT / "configs/quickstart.py"), seeds=[0, 1])


def planned(methods, grid=None):
    return list(sweep_plan.plan(QUICK, methods, grid or {}).values())


def goal(until="ci:0.5", baseline="fedavg", max_seeds=20):
    return sweep_seeds.parse(until, baseline, max_seeds)


def names(pairs):
    return [(pair.cell.name, pair.baseline.name) for pair in pairs]


def test_a_baseline_method_is_paired_at_each_point_of_the_grid():
    grid = {"local.lr": ["0.1", "1"], "method.mu": ["2", "3"]}
    assert names(sweep_seeds.pairs(planned(["fedavg", "fedprox"], grid), goal())) == [
        ("fedprox,local.lr=0.1,mu=2.0", "fedavg,local.lr=0.1"),
        ("fedprox,local.lr=0.1,mu=3.0", "fedavg,local.lr=0.1"),
        ("fedprox,local.lr=1.0,mu=2.0", "fedavg,local.lr=1.0"),
        ("fedprox,local.lr=1.0,mu=3.0", "fedavg,local.lr=1.0"),
    ]


def test_a_baseline_cell_means_the_same_settings_in_every_partition():
    grid = {"partition.num_clients": ["5", "6"], "method.mu": ["2", "3"]}
    cells = planned(["fedprox"], grid)
    pairs = sweep_seeds.pairs(cells, goal(baseline="fedprox,partition.num_clients=5,mu=2.0"))
    assert names(pairs) == [
        (f"fedprox,partition.num_clients={n},mu=3.0", f"fedprox,partition.num_clients={n},mu=2.0")
        for n in (5, 6)
    ]
    for some, options, message in (
        (cells, {"baseline": "fedprox"}, "mu=2.0 or "),  # it could be several cells
        (cells, {"baseline": "fedprx"}, "no cell; did you mean 'fedprox'"),
        (planned(["fedavg"]), {}, "needs another cell besides the baseline"),
        (planned(["fedavg", "moon"]), {"max_seeds": 2}, "--max_seeds=2 must be larger than 2"),
    ):
        assert message in complaint(sweep_seeds.pairs, some, goal(**options))
    for until in ("0.5", "ci", "ci:", "ci:0", "ci:-1", "ci:101", "ci:x", "ci:1e9"):
        assert "is not ci:POINTS" in complaint(goal, until)


def differing(cells, out, differences):
    """Writes finished runs: the baseline's accuracy is 50, the other's 50 plus the difference."""
    baseline, other = cells
    finished_cells.finish(baseline, out, dict.fromkeys(range(len(differences)), 50.0))
    finished_cells.finish(other, out, {i: 50 + d for i, d in enumerate(differences)})


def test_seeds_are_added_in_batches_until_the_difference_is_clear(tmp_path):
    """Both cells of a pair get the same seeds."""
    cells = planned(["fedavg", "moon"])
    pairs = sweep_seeds.pairs(cells, goal())
    differences = 3 + np.random.default_rng(0).normal(size=20)
    counts = []
    for count in range(2, 21, 2):
        differing(cells, tmp_path, differences[:count])
        state = sweep_seeds.compare(pairs[0], goal("ci:0.8"), tmp_path)
        runs = sweep_seeds.next_runs(pairs, goal("ci:0.8"), tmp_path)
        assert state.seeds == count and state.mean == pytest.approx(np.mean(differences[:count]))
        assert (state.state == "clear") == (state.half_width <= 0.8) == (runs == [])
        if not runs:
            break
        counts.append(count)
        assert {run.name: run.seeds for run in runs} == {
            "moon": list(range(count + 2)),
            "fedavg": list(range(count + 2)),
        }
    assert 4 <= counts[-1] < 18


def test_no_cell_has_more_than_max_seeds_and_clear_cells_get_none(tmp_path):
    cells = planned(["fedavg", "moon"])
    pairs = sweep_seeds.pairs(cells, goal())
    differing(cells, tmp_path, [0.0, 9.0, 5.0, -9.0])
    few = goal(max_seeds=5)
    assert [run.seeds for run in sweep_seeds.next_runs(pairs, few, tmp_path)] == [[*range(5)]] * 2
    differing(cells, tmp_path, [0.0, 9.0, 5.0, -9.0, 3.0])
    assert sweep_seeds.next_runs(pairs, few, tmp_path) == []
    assert sweep_seeds.compare(pairs[0], few, tmp_path).state == "open"
    fedavg, moon, fedprox = cells = planned(["fedavg", "moon", "fedprox"])
    four = range(4)
    finished_cells.finish(fedavg, tmp_path, dict.fromkeys(four, 50.0))
    finished_cells.finish(moon, tmp_path, dict.fromkeys(four, 60.0))
    finished_cells.finish(fedprox, tmp_path, {i: 10.0 * i for i in four})
    runs = sweep_seeds.next_runs(sweep_seeds.pairs(cells, goal()), goal(), tmp_path)
    assert {run.name for run in runs} == {"fedavg", "fedprox"}


def test_killed_runs_are_finished_before_seeds_are_added(tmp_path):
    cells = fedavg, moon = planned(["fedavg", "moon"])
    pairs = sweep_seeds.pairs(cells, goal())
    differing(cells, tmp_path, [0.0, 9.0])
    finished_cells.begin_more(moon, tmp_path, [2, 3])
    (run,) = sweep_seeds.next_runs(pairs, goal(), tmp_path)
    assert (run.name, run.seeds) == ("moon", [0, 1, 2, 3])
    finished_cells.finish(moon, tmp_path, dict.fromkeys(range(4), 50.0))  # fedavg lacks two seeds
    (run,) = sweep_seeds.next_runs(pairs, goal(), tmp_path)
    assert (run.name, run.seeds) == ("fedavg", [0, 1, 2, 3])


def test_diverged_cells_get_no_seeds_and_cells_without_summary_are_unfinished(tmp_path):
    cells = fedavg, moon = planned(["fedavg", "moon"])
    pairs = sweep_seeds.pairs(cells, goal())
    differing(cells, tmp_path, [0.0, 9.0])
    finished_cells.begin_more(moon, tmp_path, [2, 3])
    diverged = sweep_folder.Outcome(sweep_folder.DIVERGED, "in round 1")
    sweep_folder.record(diverged, tmp_path / "moon")
    assert sweep_seeds.compare(pairs[0], goal(), tmp_path).state == "diverged"
    assert sweep_seeds.next_runs(pairs, goal(), tmp_path) == []
    (tmp_path / "moon/summary.json").unlink()
    (tmp_path / "moon/error.txt").unlink()
    assert sweep_seeds.compare(pairs[0], goal(), tmp_path).state == "unfinished"


def test_a_sweep_with_added_seeds_resumes_with_the_same_command(tmp_path):
    """It also accepts more seeds, but neither other seeds nor fewer."""
    cells = {cell.name: cell for cell in planned(["fedavg", "moon"])}
    sweep_folder.write_plan({}, cells, tmp_path)
    differing(list(cells.values()), tmp_path, [0.0, 9.0, 3.0, 4.0])
    sweep_folder.check_folder(QUICK, cells, tmp_path)
    moon = cells["moon"]
    assert sweep_folder.done(moon, tmp_path / "moon") == sweep_folder.Outcome(0)
    assert sweep_folder.done(moon._replace(seeds=[*range(5)]), tmp_path / "moon") is None
    methods = ["fedavg", "moon"]
    more = QUICK._replace(seeds=[*range(5)], overrides=[("run.rounds", "99")])
    longer = sweep_plan.plan(more, methods, {})
    sweep_folder.check_folder(more, longer, tmp_path)
    of_more_rounds = longer["moon"]._replace(seeds=[0, 1])
    assert sweep_folder.done(of_more_rounds, tmp_path / "moon") is None
    for shared, some, message in (
        (QUICK._replace(seeds=[0]), methods, "config.seeds is [0, 1], not [0]"),
        (QUICK._replace(seeds=[1, 2]), methods, "config.seeds is [0, 1], not [1, 2]"),
        (more, ["moon"], "config.run.rounds is 20, not 99"),  # fedavg would keep 20 rounds
        (QUICK._replace(seeds=[*range(5)]), ["moon"], "config.seeds is [0, 1], not"),
    ):
        new = sweep_plan.plan(shared, some, {})
        assert message in complaint(sweep_folder.check_folder, shared, new, tmp_path)
