"""Decentralized methods: the graphs' weights, and both rules against NumPy and FedAvg."""

import jax
import naive
import numpy as np
import pytest
import toys
from inputs import complaint
from naive import KEYS
from rounds import rounds

from fedjax_lab import sampling, tree
from fedjax_lab.methods import _graph
from fedjax_lab.simulation import simulate


def neighbors(graph, count):
    W = np.asarray(_graph.mixing(graph, 4, jax.random.key(0), count))
    np.testing.assert_allclose(W, W.T)
    np.testing.assert_allclose(W.sum(0), 1, rtol=1e-6)
    linked = (W > 1e-6) & ~np.eye(count, dtype=bool)
    return W, linked


@pytest.mark.slow
def test_weights_of_the_graphs():
    W, linked = neighbors("ring", 6)
    assert np.flatnonzero(linked[0]).tolist() == [1, 5] and W[0, 0] == pytest.approx(1 / 3)
    W, linked = neighbors("torus", 12)  # 3 rows of 4
    assert np.flatnonzero(linked[5]).tolist() == [1, 4, 6, 9] and W[5, 9] == pytest.approx(0.2)
    W, _ = neighbors("complete", 5)
    np.testing.assert_allclose(W, 0.2, rtol=1e-6)
    W, linked = neighbors("random", 50)
    assert linked.sum(1).min() >= 2 and linked.sum(1).mean() > 3.5
    assert (np.linalg.matrix_power(W, 50) > 0).all()  # connected
    assert neighbors("torus", 1)[0] == 1


def by_hand(W, t, d_psgd):
    """The models of all clients after t rounds; every client trains in each of them."""
    x = [naive.first_weights()] * toys.C
    for _ in range(t):
        y = [naive.sgd(w, *naive.data_of(i)) for i, w in enumerate(x)]
        mixed = [naive.mean(row, x if d_psgd else y) for row in W]
        moved = [naive.add(a, naive.sub(b, c)) for a, b, c in zip(mixed, y, x, strict=True)]
        x = moved if d_psgd else mixed
    return x


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d_psgd", "dfedavgm"])
def test_a_ring_against_numpy(name):
    W, _ = neighbors("ring", toys.C)
    method = toys.make(name, toys.TASK)
    state = rounds(method, 3)
    expected = by_hand(W, 3, name == "d_psgd")
    for i, w in enumerate(expected):
        naive.close(tree.take(state.server[0], i), w)
    mean = naive.mean(np.full(toys.C, 1 / toys.C), expected)
    naive.close(method.newcomer(state)[0], mean)


@pytest.mark.slow
def test_on_the_complete_graph_it_is_fedavg_of_all_clients():
    complete, _ = toys.player(toys.make("dfedavgm", graph="complete"))(KEYS, 0, 3)
    fedavg = toys.make("fedavg")._replace(sample=sampling.evenly(sampling.all_clients))
    expected = toys.player(fedavg)(KEYS, 0, 3)[0].server
    for i in (0, 5):
        toys.close(tree.take(complete.server[0], i), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_a_client_whose_upload_is_lost_keeps_its_model():
    method = toys.make("dfedavgm")
    server = simulate.init(method, KEYS, toys.C).server
    moved = tree.add(server[0], server[0])
    lost = toys.POPULATION._replace(id=toys.POPULATION.id.at[3].set(toys.C))
    models, W = method.round[0].aggregate(server, moved, lost)
    factor = 2 - np.asarray(W)[:, 3]
    for name, leaf in tree.by_name(models).items():
        first = np.asarray(tree.by_name(server[0])[name])
        wide = factor.reshape(-1, *(1,) * (first.ndim - 1))
        np.testing.assert_allclose(leaf, wide * first, rtol=1e-5, atol=1e-6)


def test_bad_settings_are_rejected():
    assert "did you mean 'ring'" in complaint(toys.make, "d_psgd", graph="rings")
    assert "must be even, got 3" in complaint(toys.make, "dfedavgm", degree=3)
