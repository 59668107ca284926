"""Checks `on_evaluation`, the function that a run calls after each evaluation."""

import functools

import jax
import numpy as np
import pytest
import toys

import fedjax_lab
from fedjax_lab.config_files import load_config
from fedjax_lab.errors import BadInput

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    toys.write_examples(folder / "data.npz")
    run = {"rounds": 8, "eval_every": 3, "cohort": 3}
    return load_config(f"{toys.write_config(folder, run=run)}:scaffold")


@pytest.fixture(scope="module")
def run(config):
    return functools.partial(fedjax_lab.run, config, seeds=[0, 1], quiet=True)


@pytest.fixture(scope="module")
def whole(run):
    """The run without `on_evaluation`."""
    return run()


def same_rows(one, other):
    def comparable(rows):
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    assert comparable(one) == comparable(other)


@pytest.mark.parametrize("way", ["vectorized", "sequential"])
def test_on_evaluation_gets_the_row_and_the_state(way, config):
    """States that are kept do not change, although the next rounds reuse their memory."""
    calls = []
    result = fedjax_lab.run(
        {**config, "engine": {"seeds": way}},
        seeds=[0, 1],
        quiet=True,
        on_evaluation=lambda row, state: calls.append((row, state())),
    )
    assert [row for row, _ in calls] == result.metrics
    for (_, state), final in zip(calls[-2:], result.states, strict=True):
        assert all(isinstance(a, np.ndarray) for a in jax.tree.leaves(state))
        toys.same(state, final)
    of_seed = [state.server for row, state in calls if row["seed"] == 1]
    for after, (early, late) in zip((3, 6), zip(of_seed, of_seed[1:], strict=False), strict=True):
        shorter = {**config, "engine": {"seeds": way}, "run": {**config["run"], "rounds": after}}
        if after == 3:
            toys.same(early, fedjax_lab.run(shorter, seeds=[0, 1], quiet=True).states[1].server)
        with pytest.raises(AssertionError):
            toys.same(early, late)


def test_on_evaluation_does_not_change_the_run(run, whole):
    observed = run(on_evaluation=lambda row, state: row.clear() or state())
    same_rows(observed.metrics, whole.metrics)
    toys.same(observed.states, whole.states)


def test_a_state_is_available_only_until_on_evaluation_returns(run):
    kept = []
    run(on_evaluation=lambda row, state: kept.append(state))
    with pytest.raises(RuntimeError, match="until on_evaluation returns"):
        kept[0]()


def test_returning_stop_ends_the_run(run, whole, tmp_path):
    def enough(row, state):
        return fedjax_lab.STOP if (row["round"], row["seed"]) == (6, 1) else None

    result = run(workdir=tmp_path / "a", on_evaluation=enough)
    assert result.summary["stopped"] == {"rule": "on_evaluation", "round": 6}
    same_rows(result.metrics, whole.metrics[:4])
    result = run(workdir=tmp_path / "a", resume=True)
    assert "stopped" not in result.summary
    same_rows(result.metrics, whole.metrics)


def test_on_evaluation_must_be_a_function_before_anything_is_written(run, tmp_path):
    with pytest.raises(BadInput, match="on_evaluation must be a function, got 3"):
        run(workdir=tmp_path / "a", on_evaluation=3)
    assert not (tmp_path / "a").exists()


def test_an_exception_ends_the_run_with_its_state_saved(run, whole, tmp_path):
    def fail(row, state):
        raise ZeroDivisionError(row["round"])

    with pytest.raises(ZeroDivisionError, match="3") as error:
        run(workdir=tmp_path / "a", on_evaluation=fail)
    assert error.traceback[-1].name == "fail"
    assert [path.name for path in (tmp_path / "a/checkpoints").glob("[0-9]*")] == ["3"]
    rounds = []
    result = run(
        workdir=tmp_path / "a",
        resume=True,
        on_evaluation=lambda row, state: rounds.append(row["round"]),
    )
    assert rounds == [6, 6, 8, 8]
    same_rows(result.metrics, whole.metrics)
    toys.same(result.states, whole.states)
