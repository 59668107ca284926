"""Client2Vec's figures for runs without an index, or with an index without a label part."""

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


def test_a_run_without_an_index_has_times_and_no_pictures(monkeypatch):
    """FedAvg's server state is a tuple, whose method `index` is not an index of clients."""
    drawn = draw_of(Weights({"w": np.ones(3)}, {}), monkeypatch)
    assert not drawn.pictures and len(drawn.text.splitlines()) == 2


def test_an_index_of_local_weights_has_no_label_part(monkeypatch):
    """With index=local_weights the label part is empty, so only the feature index is drawn."""
    index = Index(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), ())
    drawn = draw_of(Server((), index, np.zeros(3), np.zeros(3)), monkeypatch)
    assert "cosine of feature index, same main class 1.000, other 0.000" in drawn.text
    assert "client index" not in drawn.text
    assert set(drawn.pictures) == {"run-clients"}
