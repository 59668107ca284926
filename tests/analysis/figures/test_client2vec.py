"""Client2Vec's pictures of runs that have no index, or one without a part for labels."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from fedjax_lab.analysis.figures import client2vec
from fedjax_lab.methods._client_index import Index
from fedjax_lab.methods.client2vec import Server
from fedjax_lab.types import State, Weights

ROW = {"round": 1, "stage": "train", "seconds": 1.0}
GROUPS = np.array([0, 0, 1]), ["a", "b"], "main class"


def draw_of(server, monkeypatch):
    run = SimpleNamespace(state=State(server, ()))
    monkeypatch.setattr(client2vec, "load", lambda workdir: run)
    monkeypatch.setattr(client2vec, "rows_of", lambda workdir: [ROW])
    monkeypatch.setattr(client2vec, "accuracy", lambda row: 50.0)
    monkeypatch.setattr(client2vec, "scored", lambda rows: rows)
    monkeypatch.setattr(client2vec, "groups_of", lambda run: GROUPS)
    return client2vec.draw(Path("run"))


def test_a_base_run_has_times_and_no_pictures(monkeypatch):
    """The server of FedAvg is a tuple, whose method `index` is no index of clients."""
    drawn = draw_of(Weights({"w": np.ones(3)}, {}), monkeypatch)
    assert not drawn.pictures and len(drawn.text.splitlines()) == 2


def test_heads_as_index_have_no_labels(monkeypatch):
    """Only the feature index is drawn where index=local_weights leaves the labels' part empty."""
    index = Index(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), ())
    drawn = draw_of(Server((), index, np.zeros(3), np.zeros(3)), monkeypatch)
    assert "cosine of feature index, same main class 1.000, other 0.000" in drawn.text
    assert "client index" not in drawn.text
    assert set(drawn.pictures) == {"run-clients"}
