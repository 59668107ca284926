"""Runs whose clients keep compression residuals: resuming, storage, loading, warm starts."""

import jax
import numpy as np
import pytest
import toys
from commands import call, comparable
from inputs import complaint
from stops import stopping_after

import fedjax_lab
from fedjax_lab import experiment, tree
from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.engine import Engine
from fedjax_lab.running import warm_start
from fedjax_lab.transforms import beside

# Each client keeps a head and the residuals of its encoder.
RUN = {"run": {"rounds": 4, "eval_every": 2, "cohort": 4}, "compression": {"name": "low_rank"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("residuals")
    toys.write_examples(folder / "data.npz")
    return folder


def config_of(folder, method="fedper", *overrides):
    return resolve(load_config(f"{toys.write_config(folder, **RUN)}:{method}"), overrides)


def played(folder, path, method="fedper", *overrides, seeds=(0, 3)):
    config = config_of(folder, method, *overrides)
    fedjax_lab.run(config, workdir=path, seeds=seeds, quiet=True)
    return fedjax_lab.load(path)


@pytest.fixture(scope="module")
def whole(folder):
    return played(folder, folder / "whole")


@pytest.mark.slow
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


EXACT = {
    "in memory": [("engine.state", "host")],
    "on disk": [("engine.state", "disk")],
    "one seed after another": [("engine.seeds", "sequential")],
}
CLOSE = {
    "one client after another": [("engine.strategy", "sequential")],
    "two clients at a time": [("engine.chunk", "2")],
    "divided among devices": [("engine.state", "sharded")],
}


@pytest.mark.slow
@pytest.mark.parametrize("how", EXACT)
def test_results_do_not_depend_on_where_residuals_are_stored(how, folder, whole, tmp_path):
    other = played(folder, tmp_path / "run", "fedper", *EXACT[how])
    toys.same(other.states, whole.states)


@pytest.mark.slow
@pytest.mark.parametrize("how", CLOSE)
def test_residuals_do_not_depend_on_how_clients_share_the_devices(how, folder, whole, tmp_path):
    other = played(folder, tmp_path / "run", "fedper", *CLOSE[how])
    toys.close(other.states, whole.states, rtol=2e-3, atol=2e-4)


# New clients have no residuals, and need none.


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "finetune", "fedrep", "ifca"])
def test_new_clients_have_the_scores_of_the_plain_method(method, folder, tmp_path):
    """Top-k of all numbers does not change the updates."""
    more = ("partition.new_clients", "0.34"), ("compression.name", "top_k")
    plain = played(folder, tmp_path / "plain", method, *more, ("compression.name", "none"))
    made = played(folder, tmp_path / "made", method, *more, ("compression.share", "1.0"))
    keys = {"new", "new_tuned"} & set(plain.rows[-1])
    assert keys
    for row, expected in zip(made.rows, plain.rows, strict=True):
        assert {k: row[k] for k in keys} == {k: expected[k] for k in keys}
    assert isinstance(made.states[0].private, beside.Beside)


# Loading a run.


@pytest.mark.slow
def test_a_model_is_loaded_without_residuals_and_exported(whole, tmp_path):
    state = whole.states[whole.index(3)]
    expected = tree.join(state.server, tree.take(state.private.private, 1))
    toys.same(whole.model(1, 3), expected)
    whole.export(tmp_path / "model", 1, 3)
    assert np.isfinite(whole.predict(whole.experiment.dataset.x[:5], 1)).all()


# Starting another run.


def first_states(folder, path, method, *more):
    config = config_of(folder, method, ("run.start_from", str(path)), *more)
    return Engine(warm_start.warmed(experiment.build(config, [0, 3])).simulation).final_states()


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["low_rank", "none"])
def test_clients_start_with_their_personal_models_and_no_residuals(compression, folder, whole):
    more = ("run.start_with", "personal"), ("compression.name", compression)
    states = first_states(folder, whole.folder, "fedper", *more)
    for state, source in zip(states, whole.states, strict=True):
        toys.same(beside.plain(state.private), source.private.private)
        assert not any(a.any() for a in jax.tree.leaves(getattr(state.private, "extra", ())))


def test_a_whole_state_keeps_its_residuals(folder, whole):
    states = first_states(folder, whole.folder, "fedper", ("run.start_with", "state"))
    toys.same(states, whole.states)


def test_a_state_with_residuals_does_not_fit_a_run_without_them(folder, whole):
    more = ("run.start_with", "state"), ("compression.name", "none")
    message = complaint(first_states, folder, whole.folder, "fedper", *more)
    assert "the state that the run starts from" in message
