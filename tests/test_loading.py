"""`fedjax_lab.load`: a folder gives the states, the predictions and the scores of its run."""

import json
import shutil

import jax
import numpy as np
import optional
import pytest
import toys
from inputs import complaint
from shared_programs import shared_programs  # noqa: F401
from slow_cases import exhaustive_but

import fedjax_lab
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import runner, workdir

RUN = {"run": {"rounds": 4, "eval_every": 2}, "partition": {"num_clients": 4}}
METHODS = {
    "fedavg": {},
    "fedper": {},
    "fedper on the host": {"engine.state": "host"},
    "fedper on the disk": {"engine.state": "disk"},
    "fedper on eight devices": {"engine.state": "sharded", "run.cohort": "3"},
    "finetune": {},
    "fedconcat": {"method.num_clusters": "2", "method.encoder_rounds": "2"},
    "hfedf": {},
}


def config_of(folder, name, *overrides):
    path = toys.write_config(folder, **RUN)
    return resolve(load_config(f"{path}:{name.split()[0]}"), overrides)


@pytest.fixture(scope="module")
def runs(folder):
    """A function from a name to the folder and the result of its run, which is played once."""
    played = {}

    def run(name):
        if name not in played:
            config = config_of(folder, name, *METHODS[name].items())
            path = folder / name.replace(" ", "-")
            result = fedjax_lab.run(config, workdir=path, seeds=[0, 3], quiet=True)
            played[name] = path, result
        return played[name]

    return run


SLOW = ("fedconcat",)


@pytest.mark.parametrize("name", exhaustive_but(SLOW, METHODS))
def test_loaded_states_rows_and_scores_equal_those_of_the_run(name, runs, tmp_path):
    path, result = runs(name)
    run = fedjax_lab.load(path)
    assert (run.rounds, run.seeds, run.rows) == (result.summary["rounds"], [0, 3], result.metrics)
    toys.same(run.states, result.states)
    for i, seed in enumerate(run.seeds):
        federation = run.experiment.simulation.seeds[i].federation
        rows, dataset = np.asarray(federation.global_test), run.experiment.dataset
        scores = run.score((dataset.x[rows], dataset.y[rows]), seed=seed)
        last = result.metrics[i - 2]
        for key in ("global", "global_loss"):
            assert scores[key] == pytest.approx(last[key], rel=1e-4)
    if name == "fedconcat":
        assert "do not have exactly one model" in complaint(run.export, tmp_path / "m", 0)
        assert run.predict(run.experiment.dataset.x[:3], 0).shape == (3, 3)


@pytest.fixture(scope="module")
def loaded(runs):
    return fedjax_lab.load(runs("fedper")[0])


@pytest.mark.slow
@pytest.mark.parametrize("file", ["model.safetensors", "model"])
def test_another_run_can_start_from_an_exported_model(file, loaded, folder, tmp_path):
    if "." in file:
        optional.module("safetensors")
    loaded.export(tmp_path / file, client=1)
    config = config_of(folder, "fedavg", ("model.pretrained", str(tmp_path / file)))
    first = experiment.build(config).task.init(jax.random.key(7))
    toys.same(first, loaded.model(1))
    assert "exists; name a new" in complaint(loaded.export, tmp_path / file)
    assert "no folder" in complaint(loaded.export, tmp_path / "nowhere" / file)
    assert "must be text or a Path, not 3" in complaint(loaded.export, 3)


USER_FILE = """
from flax import nnx

class Net(nnx.Module):
    def __init__(self, num_classes, *, width=4, rngs):
        self.norm = nnx.BatchNorm(5, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(5, width, rngs=rngs)])
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.out(self.drop(nnx.relu(self.layers[0](self.norm(x)))))
"""


@pytest.mark.exhaustive
def test_an_nnx_class_from_a_file_can_be_run_loaded_exported_and_reused(folder, tmp_path):
    (tmp_path / "mine.py").write_text(USER_FILE)
    name = ("model.name", f"{tmp_path}/mine.py:Net"), ("model.width", "3")
    fedjax_lab.run(config_of(folder, "fedbn", *name), workdir=tmp_path / "run", quiet=True)
    run = fedjax_lab.load(tmp_path / "run")
    run.export(tmp_path / "model", client=2)
    more = *name, ("model.pretrained", str(tmp_path / "model"))
    task = experiment.build(config_of(folder, "fedavg", *more)).task
    first = task.init(jax.random.key(9))
    toys.same(first, run.model(2))
    x = run.experiment.dataset.x[:20]
    np.testing.assert_allclose(task.apply(first, x).logits, run.predict(x, 2), atol=1e-5)


@pytest.mark.slow
def test_a_folder_can_be_loaded_while_its_run_is_in_progress(folder, monkeypatch, tmp_path):
    """The run holds its lock. Loading finds either checkpoint and changes nothing in the folder."""
    monkeypatch.setattr(workdir, "SAVE_SECONDS", 0)
    monkeypatch.setattr(workdir, "SAVE_SHARE", 1)
    config, path, seen = config_of(folder, "fedavg"), tmp_path / "run", []
    append = workdir.Workdir.append

    def look(self, rows):
        append(self, rows)
        assert (path / ".lock").exists()
        if rows[0]["round"] == 4:
            self._checkpoints.wait()
            (path / "checkpoints" / "9.orbax-checkpoint-tmp").mkdir()  # being written
            before = contents(path)
            seen.append(fedjax_lab.load(path))
            assert contents(path) == before
            shutil.rmtree(path / "checkpoints" / "9.orbax-checkpoint-tmp")

    monkeypatch.setattr(workdir.Workdir, "append", look)
    runner.run(experiment.build(config), path, quiet=True)
    (early,), late = seen, fedjax_lab.load(path)
    assert not (path / ".lock").exists()
    assert early.rounds < 4 and late.rounds == 4
    toys.same(fedjax_lab.load(path, rounds=early.rounds).states, early.states)
    assert "no checkpoint after 9 rounds, only after" in complaint(fedjax_lab.load, path, rounds=9)


def contents(path):
    return {file: file.stat().st_mtime_ns for file in path.rglob("*")}


def test_bad_folders_and_bad_arguments_are_one_line_errors(runs, loaded, tmp_path):
    assert "holds no run: it has no config.json" in complaint(fedjax_lab.load, tmp_path)
    path, _ = runs("fedper")
    begun = shutil.copytree(path, tmp_path / "begun", ignore=lambda *_: ["checkpoints"])
    assert "has no checkpoint yet" in complaint(fedjax_lab.load, begun)
    saved = json.loads((path / "config.json").read_text())
    saved["model"]["width"] = 5
    (begun / "config.json").write_text(json.dumps(saved))
    shutil.copytree(path / "checkpoints", begun / "checkpoints")
    assert "belongs to another run" in complaint(fedjax_lab.load, begun)
    saved["engine"]["sampling"] = "device"  # of version 0.2.0
    (begun / "config.json").write_text(json.dumps(saved))
    assert "which only version 0.2.0 can load" in complaint(fedjax_lab.load, begun)
    assert "rounds must be a whole number, got '2'" in complaint(fedjax_lab.load, path, rounds="2")
    assert "a folder must be text or a Path" in complaint(fedjax_lab.load, None)

    x, y = loaded.experiment.dataset.x, loaded.experiment.dataset.y
    assert "no client 4; valid: 0 .. 3" in complaint(loaded.predict, x, 4)
    assert "no client 1.0; valid:" in complaint(loaded.predict, x, 1.0)
    assert "has no seed 1; valid: [0, 3]" in complaint(loaded.predict, x, 0, seed=1)
    assert "shape [N, 5], as in the run's dataset" in complaint(loaded.predict, x[:, 1:], 0)
    assert "must be a Dataset, or a pair" in complaint(loaded.score, x)
    assert "labels must be 0 .. 2, not 1 .. 3" in complaint(loaded.score, (x, y + 1))
    assert "one for each of the 300 examples" in complaint(loaded.score, (x, y[1:]))
