"""Runs of Client2Vec: stages, bytes, the index of another run, and figures."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from indices import KEYS
from inputs import complaint

from fedjax_lab.commands import figures
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.experiment import experiment, registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.methods.client2vec import Server
from fedjax_lab.papers.client2vec import index as client_index
from fedjax_lab.papers.client2vec import index_figures, network
from fedjax_lab.papers.client2vec.index import Index
from fedjax_lab.running import runner
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.simulation.population import make_population
from fedjax_lab.types import State, Weights

pytestmark = pytest.mark.usefixtures("small_network")


def run_of(folder, seeds=(0,), workdir=None, resume=False, **method):
    return runner.run(experiment_of(folder, seeds, **method), workdir, resume, quiet=True)


def experiment_of(folder, seeds=(0,), **method):
    sections = {
        "embedding": toys.write_embeddings(folder),
        "method": {"name": "client2vec", "index_epochs": 2, **method},
        "run": {"rounds": 3, "eval_every": 2, "cohort": 2},
    }
    return toys.build(folder, seeds, **sections)


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "HIDDEN", 16)
        patch.setattr(network, "LAYERS", 1)
        workdir = tmp_path_factory.mktemp("run") / "workdir"
        return run_of(folder, (0, 1), workdir)


@pytest.mark.exhaustive
def test_a_run_has_the_stages_of_its_index(whole, folder):
    """Only the training is scored; its first weights are those of the base method."""
    rows = [row for row in whole.metrics if row["seed"] == 0]
    names = ["collect", "index", "index", "describe", "train", "train"]
    assert [row["stage"] for row in rows] == names
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 6, 7]
    assert ["global" in row for row in rows] == [False] * 4 + [True] * 2
    assert whole.summary["max_over_rounds"]["mean"]["global"] > 0
    e = experiment_of(folder)
    count = np.asarray(make_population(e.simulation.seeds[0].federation, 3).label_count)
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


@pytest.mark.exhaustive
def test_bytes_of_a_run(whole):
    """Each client sends 128 pairs and receives DSA-IGN; B^f is sent to each client once."""
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


@pytest.mark.exhaustive
def test_a_run_can_use_the_index_of_another_run(whole, folder):
    """Only the training is run; an index of other clients is rejected."""
    later = run_of(folder, (1,), index_of=str(whole.workdir))
    assert {row["stage"] for row in later.metrics} == {"train"}
    toys.same(later.states[0].server.index, whole.states[1].server.index)
    text = complaint(run_of, folder, (2,), index_of=str(whole.workdir))
    assert "holds an index of other clients" in text
    text = complaint(run_of, folder, (1,), index_of=str(folder))
    assert "holds no index; name a client2vec run" in text


def test_a_damaged_index_is_an_error(tmp_path, folder):
    (tmp_path / "stages").mkdir()
    file = tmp_path / "stages" / "train-0.npz"
    file.write_bytes(b"no zip")
    assert "cannot be read" in complaint(experiment_of, folder, index_of=str(tmp_path))
    np.savez(file, member=np.eye(2))
    assert "holds no index" in complaint(experiment_of, folder, index_of=str(tmp_path))


@pytest.mark.slow
def test_a_reused_index_needs_no_embeddings(whole, folder):
    """The size of P is that of the reused index."""
    e = experiment_of(folder, (1,), index_of=str(whole.workdir))
    task = e.task._replace(embeddings=lambda: pytest.fail("asked for"))
    stage = registry.make_method("client2vec", task, index_of=str(whole.workdir))(3)[-1]
    facts = stage.prepare(None, make_population(e.simulation.seeds[0].federation, 3), None)
    state = stage.start(KEYS.init, 6, None, facts)
    assert state.server.base.params["side"]["P"].shape == (8, 32)


@pytest.mark.parametrize("shots", [0, 3])
def test_an_unseen_domain_is_embedded_only_if_clients_hold_examples_of_it(shots):
    """Otherwise the source of embeddings does not receive these examples."""
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
    dataset = Dataset(x, np.arange(40) % 10, domain, test, tuple("0123456789"), domains)
    embeddings = experiment.load_embeddings(config, dataset).examples
    expected = ~test & (domain == 0) | (domain == 1) & (shots > 0)
    np.testing.assert_array_equal((embeddings != 0).any(1), expected)


@pytest.mark.exhaustive
def test_the_index_of_local_weights_changes_during_training(folder):
    """It holds the heads of past participants and is sent with every model; no stage precedes."""
    run = run_of(folder, index="local_weights")
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
        ({"base": "fedconcat"}, "has several stages"),
        ({"base": "central"}, "its server never sees the updates of several clients at once"),
        ({"base": "client2vec"}, "config.method.base cannot be 'client2vec'"),
        ({"base": "moon", "beta": 0.5}, "no setting 'beta'"),
        ({"index": "globall"}, "did you mean 'global'"),
        ({"index_part": "label"}, "needs local_training=False"),
        ({"index": "local_weights", "base": "ifca"}, "combined with this config.method.base"),
        ({"index": "local_weights", "base": "fedc2i"}, "base with one model for all clients"),
        ({"index": "local_weights", "index_of": "runs/x"}, "with config.method.index_of=runs/x"),
    ],
)
def test_invalid_settings_are_errors(folder, method, words):
    assert words in complaint(experiment_of, folder, **method)


@pytest.mark.slow
def test_the_figure_of_a_run_and_its_seconds_by_stage(whole, tmp_path, capsys):
    """Draws the run's index, prints similarities by main class, and computes the seconds."""
    assert figures.main(["client2vec", str(whole.workdir), f"--out={tmp_path}"]) == 0
    assert (tmp_path / "workdir-clients.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "workdir: cosine of client index, same main class" in printed
    rows = index_figures.rows_of(whole.workdir)
    before = [row["seconds"] for row in rows if row["stage"] == "describe"][0]
    seconds = index_figures.seconds(rows, metric_rows.headline(rows[-2]))
    np.testing.assert_allclose(seconds, (before, rows[-2]["seconds"] - before))


def test_mean_similarity_inside_and_between_groups():
    table = np.array([[1, 0.5, 0.1], [0.5, 1, 0.3], [0.1, 0.3, 1]])
    np.testing.assert_allclose(index_figures.alike(table, np.array([0, 0, 1])), (0.5, 0.2))
    b = np.array([[3.0, 4.0], [0.0, 0.0], [4.0, -3.0]])
    np.testing.assert_allclose(
        index_figures.cosines(b), [[1, 0, 0], [0, 0, 0], [0, 0, 1]], atol=1e-12
    )


ROW = {"round": 1, "stage": "train", "seconds": 1.0}
GROUPS = np.array([0, 0, 1]), ["a", "b"], "main class"


def draw_of(server, monkeypatch):
    run = SimpleNamespace(state=State(server, ()))
    monkeypatch.setattr(index_figures, "load", lambda workdir: run)
    monkeypatch.setattr(index_figures, "rows_of", lambda workdir: [ROW])
    monkeypatch.setattr(index_figures, "accuracy", lambda row: 50.0)
    monkeypatch.setattr(index_figures, "scored", lambda rows: rows)
    monkeypatch.setattr(index_figures, "groups_of", lambda run: GROUPS)
    return index_figures.draw(Path("run"))


def test_figures_of_runs_without_an_index_or_its_label_part(monkeypatch):
    """FedAvg's server state is a tuple, whose method `index` is not an index of clients."""
    drawn = draw_of(Weights({"w": np.ones(3)}, {}), monkeypatch)
    assert not drawn.pictures and len(drawn.text.splitlines()) == 2
    # With index=local_weights the label part is empty, so only the feature index is drawn.
    index = Index(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), ())
    drawn = draw_of(Server((), index, np.zeros(3), np.zeros(3)), monkeypatch)
    assert "cosine of feature index, same main class 1.000, other 0.000" in drawn.text
    assert "client index" not in drawn.text
    assert set(drawn.pictures) == {"run-clients"}
