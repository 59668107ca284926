"""Checks `on_evaluation`, the function that a run calls after each evaluation."""

import functools

import jax
import numpy as np
import pytest
import toys
from commands import without_clock
from inputs import complaint

import fedjax_lab


@pytest.fixture(scope="module")
def config(folder):
    run = {"rounds": 8, "eval_every": 3, "cohort": 3}
    return toys.config(folder, run=run, method={"name": "scaffold"})


@pytest.fixture(scope="module")
def run():
    return functools.partial(fedjax_lab.run, seeds=[0, 1], quiet=True)


@pytest.fixture(scope="module")
def whole(run, config):
    """The run without `on_evaluation`."""
    return run(config)


def same_rows(one, other):
    assert without_clock(one) == without_clock(other)


@pytest.mark.slow
def test_on_evaluation_gets_the_row_and_the_state(config, run, whole):
    """States that are kept do not change, although the next rounds reuse their memory."""
    kept = []

    def note(row, state):
        kept.append((dict(row), state, state()))
        row.clear()  # which does not change the run

    result = run(config, on_evaluation=note)
    same_rows([row for row, *_ in kept], result.metrics)
    for (*_, state), final in zip(kept[-2:], result.states, strict=True):
        assert all(isinstance(a, np.ndarray) for a in jax.tree.leaves(state))
        toys.same(state, final)
    early, late = kept[1][2].server, kept[3][2].server
    shorter = {**config, "run": {**config["run"], "rounds": 3}}
    toys.same(early, run(shorter).states[1].server)
    with pytest.raises(AssertionError):
        toys.same(early, late)
    with pytest.raises(RuntimeError, match="until on_evaluation returns"):
        kept[0][1]()
    same_rows(result.metrics, whole.metrics)
    toys.same(result.states, whole.states)


@pytest.mark.slow
def test_returning_stop_or_an_exception_ends_the_run(run, config, whole, tmp_path):
    def enough(row, state):
        return fedjax_lab.STOP if (row["round"], row["seed"]) == (6, 1) else None

    def fail(row, state):
        raise ZeroDivisionError(row["round"])

    folder, rounds = tmp_path / "a", []
    with pytest.raises(ZeroDivisionError, match="3") as error:
        run(config, workdir=folder, on_evaluation=fail)
    assert error.traceback[-1].name == "fail"
    assert [path.name for path in (folder / "checkpoints").glob("[0-9]*")] == ["3"]
    result = run(config, workdir=folder, resume=True, on_evaluation=enough)
    assert result.summary["stopped"] == {"rule": "on_evaluation", "round": 6}
    same_rows(result.metrics, whole.metrics[:4])

    def note(row, state):
        rounds.append(row["round"])

    result = run(config, workdir=folder, resume=True, on_evaluation=note)
    assert "stopped" not in result.summary and rounds == [8, 8]
    same_rows(result.metrics, whole.metrics)
    toys.same(result.states, whole.states)
    message = complaint(run, config, workdir=tmp_path / "b", on_evaluation=3)
    assert "on_evaluation must be a function, got 3" in message
    assert not (tmp_path / "b").exists()
