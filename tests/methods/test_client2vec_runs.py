"""Runs of Client2Vec: stages, bytes, an index of another run, figures."""

import importlib
import json
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from indices import KEYS
from inputs import complaint

from fedjax_lab import experiment, metrics, registry, runner, simulate
from fedjax_lab.config import load_config, resolve
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.methods import client_index
from fedjax_lab.models import dsa_ign
from fedjax_lab.types import State

# Whole runs.

pytestmark = pytest.mark.usefixtures("small_network")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """300 examples of three classes, and embeddings of them of 32 numbers."""
    rng = np.random.default_rng(1)
    folder = tmp_path_factory.mktemp("data")
    toys.write_examples(folder / "data.npz")
    np.savez(folder / "embedded.npz", examples=rng.normal(size=(300, 32)), labels=np.eye(3, 32))
    return folder


def run_of(data, seeds=(0,), workdir=None, resume=False, **method):
    return runner.run(experiment_of(data, seeds, **method), workdir, resume, quiet=True)


def experiment_of(data, seeds=(0,), **method):
    config = {
        "data": {"name": "arrays", "path": str(data / "data.npz")},
        "partition": {"num_clients": 6},
        "model": {"name": "mlp", "width": 8},
        "embedding": {"name": "precomputed", "file": str(data / "embedded.npz")},
        "method": {"name": "client2vec", "index_epochs": 2, **method},
        "run": {"rounds": 3, "eval_every": 2, "cohort": 2},
    }
    return experiment.build(resolve(config), list(seeds))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dsa_ign, "HIDDEN", 16)
        patch.setattr(dsa_ign, "LAYERS", 1)
        workdir = tmp_path_factory.mktemp("run") / "workdir"
        return run_of(data, (0, 1), workdir)


def test_a_run_has_the_stages_of_its_index(whole, data):
    """Scored in training alone; the first weights are those of the base method."""
    rows = [row for row in whole.metrics if row["seed"] == 0]
    names = ["collect", "index", "index", "describe", "train", "train"]
    assert [row["stage"] for row in rows] == names
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 6, 7]
    assert ["global" in row for row in rows] == [False] * 4 + [True] * 2
    assert whole.summary["max_over_rounds"]["mean"]["global"] > 0
    e = experiment_of(data)
    count = np.asarray(simulate.population(e.simulation.federations[0], 3).label_count)
    label = whole.states[0].server.index.label
    np.testing.assert_allclose(
        label, count / count.sum(1, keepdims=True) @ np.eye(3, 32), atol=1e-6
    )
    first = e.simulation.stages[-1].start(
        jax.random.key(7),
        6,
        State(client_index.Server(KEYS.init, *(None,) * 4, ()), ()),
        {"feature": jnp.zeros((6, 32)), "label": jnp.zeros((6, 32))},
    )
    params = dict(first.server.base.params)
    params.pop("side")
    toys.same(params, e.task.init(KEYS.init).params)


def test_bytes_of_a_run(whole):
    """All clients send 128 pairs and get DSA-IGN; B^f goes to everybody once."""
    rows = [row for row in whole.metrics if row["seed"] == 0]
    psi = 4 * dsa_size(32, 16)
    pairs = 6 * 4 * (128 * 32 + 2 * 128)  # D, y and the mask
    assert (rows[0]["bytes_up"], rows[0]["bytes_down"]) == (pairs, 0)
    assert (rows[2]["bytes_up"], rows[2]["bytes_down"]) == (pairs, 0)
    index = 6 * 4 * 64
    assert (rows[3]["bytes_up"], rows[3]["bytes_down"]) == (pairs + index, 6 * psi)
    model = 4 * (5 * 8 + 8 + 8 * 3 + 3 + 8 * 32 + 32 * 3 + 3)
    assert rows[4]["bytes_up"] == pairs + index + 2 * 2 * model
    assert rows[4]["bytes_down"] == 6 * psi + 6 * (6 * 4 * 32) + 2 * 2 * model


def dsa_size(E, hidden):
    layer = 4 * (32 * 32 + 32) + 2 * 32 * hidden + hidden + 32 + 4 * 32
    return 2 * E + layer + 2 * E * E + E


def test_a_run_takes_the_index_of_another(whole, data):
    """Nothing but the training is run; the index is that of the same clients."""
    found = run_of(data, (1,), index_of=str(whole.workdir))
    assert {row["stage"] for row in found.metrics} == {"train"}
    toys.same(found.states[0].server.index, whole.states[1].server.index)
    text = complaint(run_of, data, (2,), index_of=str(whole.workdir))
    assert "holds an index of other clients" in text
    text = complaint(run_of, data, (1,), index_of=str(data))
    assert "holds no index; name a client2vec run" in text


def test_damaged_indices_are_told(tmp_path, data):
    (tmp_path / "stages").mkdir()
    file = tmp_path / "stages" / "train-0.npz"
    file.write_bytes(b"no zip")
    assert "cannot be read" in complaint(experiment_of, data, index_of=str(tmp_path))
    np.savez(file, member=np.eye(2))
    assert "holds no index" in complaint(experiment_of, data, index_of=str(tmp_path))


def test_an_index_taken_over_needs_no_embeddings(whole, data):
    """Its own size counts."""
    e = experiment_of(data, (1,), index_of=str(whole.workdir))
    task = e.task._replace(labels=lambda: pytest.fail("asked for"))
    stage = registry.make_method("client2vec", task, index_of=str(whole.workdir))(3)[-1]
    facts = stage.prepare(None, simulate.population(e.simulation.federations[0], 3), None)
    state = stage.start(KEYS.init, 6, None, facts)
    assert state.server.base.params["side"]["P"].shape == (8, 32)


@pytest.mark.parametrize("shots", [0, 3])
def test_rows_of_an_unseen_domain_are_embedded_where_clients_hold_some(shots):
    """Otherwise the source does not see them."""
    config = resolve(
        {
            "data": {"name": "digit_domains", "unseen": "street", "shots": shots},
            "embedding": {"size": 32},
        }
    )
    rng = np.random.default_rng(0)
    test = np.arange(40) % 4 == 0
    domains = ("handwritten", "street")
    x, domain = rng.integers(0, 256, (40, 8, 8, 3)).astype(np.uint8), np.arange(40) % 2
    known = Dataset(x, np.arange(40) % 10, domain, test, tuple("0123456789"), domains)
    made = experiment.load_embeddings(config, known).examples
    expected = ~test & (domain == 0) | (domain == 1) & (shots > 0)
    np.testing.assert_array_equal((made != 0).any(1), expected)


def test_a_finished_run_is_read_again(whole, data):
    again = run_of(data, (0, 1), whole.workdir, resume=True)
    toys.same(again.states[1].server.index, whole.states[1].server.index)
    assert again.summary == whole.summary


def test_local_weights_are_an_index_that_changes(data):
    """Heads of those who took part; B^f goes down with every model; no stage comes before."""
    run = run_of(data, index="local_weights")
    assert {row["stage"] for row in run.metrics} == {"train"}
    server = run.states[0].server
    assert server.index.feature.shape == (6, 8 * 3 + 3)
    seen = np.asarray(server.age) <= 3
    assert (np.abs(server.index.feature).sum(1) > 0).tolist() == seen.tolist()
    last = run.metrics[-1]
    assert last["bytes_down"] - last["bytes_up"] == 3 * 2 * 6 * 27 * 4


@pytest.mark.parametrize(
    "method, words",
    [
        ({"base": "fedavgg"}, "did you mean 'fedavg'"),
        ({"base": "fedconcat"}, "has stages of its own"),
        ({"base": "central"}, "has no rounds of several clients"),
        ({"base": "client2vec"}, "config.method.base cannot be 'client2vec'"),
        ({"base": "moon", "beta": 0.5}, "no setting 'beta'"),
        ({"base": "moon", "mu": "big"}, "config.method.mu must be of type float"),
        ({"index": "globall"}, "did you mean 'global'"),
        ({"index_part": "label"}, "needs local_training=False"),
        ({"index_epochs": 0}, "config.method.index_epochs must be above 0"),
        ({"history_gamma": 1.5}, "config.method.history_gamma must be from 0 to 1"),
        ({"index_decoder": "mpl"}, "did you mean 'mlp'"),
        ({"index": "local_weights", "base": "ifca"}, "not go with this config.method.base"),
        ({"index": "local_weights", "base": "fesem"}, "needs a base with one model for all"),
        ({"index": "local_weights", "base": "fedc2i"}, "needs a base with one model for all"),
        ({"index": "local_weights", "index_of": "runs/x"}, "does not go with runs/x"),
        ({"index_of": "runs/nothing"}, "index_of=runs/nothing holds no index"),
        ({"sampling_tau": 0.0}, "config.method.sampling_tau must be above 0"),
        ({"orth_reduction": "max"}, "config.method.orth_reduction cannot be 'max'"),
    ],
)
def test_bad_settings(data, method, words):
    assert words in complaint(experiment_of, data, **method)


def test_the_quickstart_finds_a_small_index():
    """So that the file keeps its promise of a minute; other methods and files keep the defaults."""
    quick = str(Path(__file__).parents[2] / "configs/quickstart.py")
    config = resolve(load_config(f"{quick}:client2vec"))
    assert config.method.index_epochs * config.embedding.size <= 20 * 64
    named = [("method.name", "client2vec")]
    assert resolve({}, named).method.index_epochs == 500
    plain = resolve(load_config(quick))
    assert plain.embedding.size == 512 and set(plain.method) == {"name"}


# The scripts.


def launch(monkeypatch, name, *arguments):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "launch"))
    monkeypatch.setattr("sys.argv", [f"{name}.py", *map(str, arguments)])
    return importlib.import_module(name)


def test_figures_and_times(whole, data, tmp_path, monkeypatch, capsys):
    """The run's index as a picture; clients alike by their main class; seconds by stage."""
    script = launch(monkeypatch, "client2vec_figures", "--out", tmp_path, whole.workdir)
    script.main()
    assert (tmp_path / "workdir-clients.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "workdir: cosine of client index, same main class" in printed
    rows = script.rows_of(whole.workdir)
    before = [row["seconds"] for row in rows if row["stage"] == "describe"][0]
    found = script.seconds(rows, metrics.headline(rows[-2]))
    np.testing.assert_allclose(found, (before, rows[-2]["seconds"] - before))


def test_likeness_of_groups(monkeypatch):
    script = launch(monkeypatch, "client2vec_figures")
    table = np.array([[1, 0.5, 0.1], [0.5, 1, 0.3], [0.1, 0.3, 1]])
    np.testing.assert_allclose(script.alike(table, np.array([0, 0, 1])), (0.5, 0.2))
    b = np.array([[3.0, 4.0], [0.0, 0.0], [4.0, -3.0]])
    np.testing.assert_allclose(script.cosines(b), [[1, 0, 0], [0, 0, 0], [0, 0, 1]], atol=1e-12)


def test_table_of_runs(tmp_path, monkeypatch, capsys):
    """Which runs a table is made of: the indices once, then each base with and without them."""
    arguments = "--config=C.py", f"--out={tmp_path}", "--bases=fedavg,moon"
    script = launch(monkeypatch, "client2vec_table", *arguments)
    calls = []

    def run(command, stdout):
        calls.append(command[3:])
        folder = next(Path(a.split("=")[1]) for a in command if a.startswith("--workdir"))
        folder.mkdir()
        seeds = {"0": {"accuracy": {"mean": 10.0 * len(calls)}}}
        (folder / "summary.json").write_text(json.dumps({"max_over_rounds": {"per_seed": seeds}}))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    script.main()
    assert len(calls) == 2 + 2 * 7
    assert [c[0] for c in calls[:3]] == ["--config=C.py:client2vec"] * 2 + ["--config=C.py:fedavg"]
    assert "--config.method.index_epochs=500" in calls[0]
    assert {"--config.method.aggregation=False", "--config.method.local_training=False"} < set(
        calls[3]
    )
    assert not any("=False" in argument for argument in calls[5])
    assert "--config.method.projection=mlp256" in calls[9]
    row = capsys.readouterr().out.splitlines()[-2]
    assert row == "| `fedavg` | 30.0 | 40.0 | 50.0 | 60.0 | 70.0 | 80.0 | **90.0** |"
