"""Runs that start from the folder of another run."""

import shutil

import jax
import numpy as np
import pytest
import toys
from commands import call, comparable
from inputs import complaint
from slow_cases import exhaustive_but

import fedjax_lab
from fedjax_lab import tree
from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import warm_start

RUN = {"run": {"rounds": 2, "eval_every": 1}, "partition": {"num_clients": 4}}


def config_of(folder, method="fedavg", *overrides):
    return resolve(load_config(f"{toys.write_config(folder, **RUN)}:{method}"), overrides)


@pytest.fixture(scope="module")
def trained(folder):
    """A function that returns the folder of a run of a method; each run is trained once."""
    played = {}

    def train(method="fedavg", seeds=(0, 3)):
        if (method, seeds) not in played:
            path = folder / f"{method}-{'-'.join(map(str, seeds))}"
            fedjax_lab.run(config_of(folder, method), workdir=path, seeds=seeds, quiet=True)
            played[method, seeds] = path
        return played[method, seeds]

    return train


def first_states(folder, path, method, *more, seeds=(3, 0)):
    """The first states of a run that starts from `path`."""
    config = config_of(folder, method, ("run.start_from", str(path)), *more)
    return Engine(warm_start.warmed(experiment.build(config, seeds)).simulation).final_states()


HOW = {
    "one by one": [("engine.seeds", "sequential")],
    "on the host": [("engine.state", "host")],
    "on eight devices": [("engine.state", "sharded"), ("run.cohort", "3")],
}


@pytest.mark.slow
def test_each_seed_starts_from_the_global_model_of_the_same_seed(folder, trained):
    run = fedjax_lab.load(trained())
    states = first_states(folder, run.folder, "fedper", *HOW["one by one"])
    for seed, state in zip((3, 0), states, strict=True):
        weights = run.model(seed=seed)
        for client in range(4):
            toys.same(tree.join(state.server, tree.take(state.private, client)), weights)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", HOW)
def test_a_run_can_start_from_a_whole_state(how, folder, trained):
    run = fedjax_lab.load(trained("fedper"))
    more = ("run.start_with", "state"), *HOW[how]
    toys.same(first_states(folder, run.folder, "fedper", *more, seeds=(0, 3)), run.states)


@pytest.mark.parametrize("method", exhaustive_but([], ["fedconcat", "ifca", "scaffold", "moon"]))
def test_first_states_of_other_methods_contain_the_global_model(method, folder, trained):
    """This includes methods with several stages, whose first stage makes the state."""
    run = fedjax_lab.load(trained())
    more = [("method.num_clusters", "2")] if method in ("ifca", "fedconcat") else []
    states = first_states(folder, run.folder, method, *more)
    head = run.model(seed=3).params["head"]["kernel"]
    for which, expected in ((0, True), (1, False)):
        leaves = [a for a in jax.tree.leaves(states[which]) if a.shape[-2:] == head.shape]
        alike = [bool((a == head).all()) for a in leaves]
        assert any(alike) == expected


@pytest.mark.exhaustive
def test_a_global_model_may_be_sent_with_other_arrays(folder, trained):
    run = fedjax_lab.load(trained("scaffold"))
    for i, state in enumerate(first_states(folder, run.folder, "fedavg", seeds=(0, 3))):
        toys.same(state.server, run.states[i].server[0])


PAIRS = [("fedper", "local"), ("fedper", "fedrep"), ("fedavg", "fedrep")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("source, method", PAIRS)
def test_clients_start_with_their_personal_models(source, method, folder, trained):
    """They start with the part that the method lets them keep, and the server with the mean."""
    run = fedjax_lab.load(trained(source))
    states = first_states(folder, run.folder, method, ("run.start_with", "personal"))
    for seed, state in zip((3, 0), states, strict=True):
        models = [run.model(client, seed) for client in range(4)]
        of_clients = jax.tree.map(lambda *a: np.stack(a), *models)
        kept, personal, sent = map(by_name, (state.private, of_clients, state.server))
        for name, array in kept.items():
            np.testing.assert_array_equal(array, personal[name])
        for name, array in sent.items():
            np.testing.assert_allclose(array, personal[name].mean(0), rtol=1e-6)


@pytest.mark.parametrize("source", exhaustive_but([], ["ditto", "fedamp"]))
def test_a_personal_model_is_the_one_that_the_client_predicts_with(source, folder, trained):
    """This holds even if the client is sent a whole model and keeps another one."""
    run = fedjax_lab.load(trained(source))
    x, task = run.experiment.dataset.x[:20], run.experiment.task
    for client in range(4):
        logits = task.apply(run.model(client, 3), x).logits
        np.testing.assert_allclose(run.predict(x, client, 3), logits, atol=1e-5)
    states = first_states(folder, run.folder, "local", ("run.start_with", "personal"))
    for client in range(4):
        toys.same(tree.take(states[0].private, client), run.model(client, 3))


def by_name(weights):
    return dict(zip(tree.names(weights), jax.tree.leaves(weights), strict=True))


@pytest.mark.exhaustive
def test_a_run_that_starts_from_another_run_can_be_resumed_and_loaded(
    folder, trained, tmp_path, capsys
):
    """All seeds start from the model of a run with a single seed, unless it has changed."""
    source = shutil.copytree(trained(seeds=(5,)), tmp_path / "source")
    run = fedjax_lab.load(source)
    for state in first_states(folder, source, "fedavg"):
        toys.same(state.server, run.model())
    flags = [f"--config={toys.write_config(folder, **RUN)}:fedprox", "--seeds=0"]
    warm = [*flags, f"--config.run.start_from={source}"]
    assert call(*warm, f"--workdir={tmp_path / 'whole'}") == 0
    assert call(*flags, f"--workdir={tmp_path / 'cold'}") == 0
    rows = comparable(tmp_path / "whole")
    assert rows[0]["train_loss"] < comparable(tmp_path / "cold")[0]["train_loss"]
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut/checkpoints/2")
    resumed = [*warm, f"--workdir={tmp_path / 'cut'}", "--resume"]
    shutil.move(source, tmp_path / "moved")
    shutil.copytree(trained(), source)
    assert call(*resumed) == 2
    assert "changed since it began: start of seed 0;" in capsys.readouterr().err
    shutil.rmtree(source)
    shutil.move(tmp_path / "moved", source)
    assert call(*resumed) == 0
    assert comparable(tmp_path / "cut") == rows
    shutil.rmtree(source)
    assert fedjax_lab.load(tmp_path / "cut").rounds == 2


@pytest.mark.parametrize(
    "source, method, more, message",
    [
        ("fedavg", "fedavg", ("model.width", "9"), "'Dense_0/bias' is 8, but the model needs 9"),
        ("fedavg", "fedavg", ("model.depth", "2"), "its weights do not match the model: it lacks"),
        ("fedavg", "fedper", ("run.start_with", "state"), "the state that the run starts from"),
        ("fedavg", "scaffold", ("run.start_with", "personal"), "clients of scaffold do not keep"),
        ("fedavg", "fedavg", ("run.start_with", "stat"), "did you mean 'state'?"),
        pytest.param(
            *("fedper", "fedavg", ("run.seed", "0"), "method fedper: it has no global model"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_unsuitable_source_runs_are_rejected(source, method, more, message, folder, trained):
    path = trained(source)
    assert message in complaint(lambda: first_states(folder, path, method, more))


def test_a_source_folder_without_a_run_or_the_seed_is_rejected(folder, trained, tmp_path):
    message = complaint(lambda: first_states(folder, tmp_path, "fedavg"))
    assert message.startswith(f"config.run.start_from={tmp_path}: ") and "no run" in message
    message = complaint(lambda: first_states(folder, trained(), "fedavg", seeds=(0, 1)))
    assert "the run has no seed 1, only 0, 3" in message
