"""Runs whose clients keep compression residuals: resuming, storage, loading, warm starts."""

import jax
import numpy as np
import pytest
import toys
from commands import call, comparable
from inputs import complaint
from slow_cases import exhaustive_but
from stops import stopping_after

import fedjax_lab
from fedjax_lab import tree
from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import warm_start
from fedjax_lab.transforms import private_state

# Each client keeps a head and the residuals of its encoder.
RUN = {"run": {"rounds": 4, "eval_every": 2, "cohort": 4}, "compression": {"name": "low_rank"}}


def config_of(folder, method="fedper", *overrides):
    return resolve(load_config(f"{toys.write_config(folder, **RUN)}:{method}"), overrides)


def played(folder, path, method="fedper", *overrides, seeds=(0, 3)):
    config = config_of(folder, method, *overrides)
    fedjax_lab.run(config, workdir=path, seeds=seeds, quiet=True)
    return fedjax_lab.load(path)


@pytest.fixture(scope="module")
def whole(folder):
    return played(folder, folder / "whole")


@pytest.mark.exhaustive
def test_a_run_resumes_with_the_residuals_of_its_clients(folder, whole, tmp_path, monkeypatch):
    flags = [f"--config={toys.write_config(folder, **RUN)}:fedper", f"--workdir={tmp_path / 'cut'}"]
    with monkeypatch.context() as patch:
        stopping_after(3, patch)
        assert call(*flags, "--seeds=0,3") == 130
    assert fedjax_lab.load(tmp_path / "cut").rounds == 3
    assert call(*flags, "--seeds=0,3", "--resume") == 0
    resumed = fedjax_lab.load(tmp_path / "cut")
    assert comparable(tmp_path / "cut") == comparable(whole.folder)
    toys.same(resumed.states, whole.states)
    assert any(a.any() for a in jax.tree.leaves(resumed.states[0].private.extra))


ELSEWHERE = {  # the settings, and whether the numbers are the same bit for bit
    "on disk, one seed after another": (
        [("engine.state", "disk"), ("engine.seeds", "sequential")],
        True,
    ),
    "divided among devices": ([("engine.state", "sharded")], False),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ELSEWHERE)
def test_results_do_not_depend_on_where_residuals_are_stored(how, folder, whole, tmp_path):
    settings, exactly = ELSEWHERE[how]
    other = played(folder, tmp_path / "run", "fedper", *settings)
    if exactly:
        toys.same(other.states, whole.states)
    toys.close(other.states, whole.states, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("method", exhaustive_but([], ["fedavg", "finetune", "fedrep", "ifca"]))
def test_new_clients_have_the_scores_of_the_plain_method(method, folder, tmp_path):
    """Top-k of all numbers does not change the updates."""
    more = ("partition.new_clients", "0.34"), ("compression.name", "top_k")
    plain = played(folder, tmp_path / "plain", method, *more, ("compression.name", "none"))
    made = played(folder, tmp_path / "made", method, *more, ("compression.share", "1.0"))
    keys = {"new", "new_tuned"} & set(plain.rows[-1])
    assert keys
    for row, expected in zip(made.rows, plain.rows, strict=True):
        assert {k: row[k] for k in keys} == {k: expected[k] for k in keys}
    assert isinstance(made.states[0].private, private_state.Beside)


@pytest.mark.exhaustive
def test_a_model_is_loaded_without_residuals_and_exported(whole, tmp_path):
    state = whole.states[whole.index(3)]
    expected = tree.join(state.server, tree.take(state.private.private, 1))
    toys.same(whole.model(1, 3), expected)
    whole.export(tmp_path / "model", 1, 3)
    assert np.isfinite(whole.predict(whole.experiment.dataset.x[:5], 1)).all()


def first_states(folder, path, method, *more):
    config = config_of(folder, method, ("run.start_from", str(path)), *more)
    return Engine(warm_start.warmed(experiment.build(config, [0, 3])).simulation).final_states()


@pytest.mark.exhaustive
def test_a_run_starts_with_the_personal_models_or_the_whole_state_of_another(folder, whole):
    """Personal models come without residuals; a whole state keeps them, or does not fit."""
    start = ("run.start_with", "personal")
    for compression in ("low_rank", "none"):
        more = start, ("compression.name", compression)
        states = first_states(folder, whole.folder, "fedper", *more)
        for state, source in zip(states, whole.states, strict=True):
            toys.same(private_state.plain(state.private), source.private.private)
            residuals = jax.tree.leaves(getattr(state.private, "extra", ()))
            assert not any(a.any() for a in residuals)
    start = ("run.start_with", "state")
    toys.same(first_states(folder, whole.folder, "fedper", start), whole.states)
    more = start, ("compression.name", "none")
    message = complaint(first_states, folder, whole.folder, "fedper", *more)
    assert "the state that the run starts from" in message
