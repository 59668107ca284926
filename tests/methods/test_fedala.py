"""Compares FedALA with FedAvg in a special case, and with plain NumPy."""

import naive
import numpy as np
import pytest
import toys
from rounds import averaged

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.local import make_work

KEYS = naive.KEYS
FIRST, ETA = 2, 5.0


@pytest.mark.slow
def test_without_adapted_layers_it_is_fedavg():
    state, sums = toys.player(toys.make("fedala", layers=0))(KEYS, 0, 3)
    toys.same((state.server, sums), (averaged()[0].server, averaged()[1]))


def mixed(w, last, W):
    """The body of w, and the head that W interpolates between `last` and the head of w."""
    return w[:2] + [a + (b - a) * c for a, b, c in zip(last, w[2:], W, strict=True)]


def learned(w, last, W, x, y, passes):
    """W after `passes` full-batch steps."""
    for _ in range(passes):
        g = naive.gradient(mixed(w, last, W), x, y)[1][2:]
        W = [
            np.clip(c - ETA * d * (b - a), 0, 1)
            for a, b, c, d in zip(last, w[2:], W, g, strict=True)
        ]
    return W


def method_and_numpy(count):
    """The method, and its rounds in NumPy: w, and (last head, W, rounds) of each client."""
    method = toys.make("fedala", toys.TASK, eta=ETA, share=1.0, first_passes=FIRST)
    w = naive.first_weights()
    kept = [(w[2:], [np.ones_like(a) for a in w[2:]], 0)] * toys.C
    for t in range(count):
        models = []
        for i in (ids := naive.cohort(method, t)):
            last, W, rounds = kept[i]
            x, y = naive.data_of(i)
            W = learned(w, last, W, x, y, {0: 0, 1: FIRST}.get(rounds, 1))
            models.append(naive.sgd(mixed(w, last, W), x, y))
            kept[i] = models[-1][2:], W, rounds + 1
        w = naive.mean_by_size(ids, models)
    return method, w, kept


@pytest.mark.slow
def test_against_numpy():
    """Seven rounds, so that some client takes part more than twice."""
    method, w, kept = method_and_numpy(7)
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 7)
    naive.close(state.server, w, rtol=1e-3, atol=1e-4)
    last, W, rounds = state.private
    np.testing.assert_array_equal(rounds, [r for *_, r in kept])
    assert max(r for *_, r in kept) > 2
    for i in range(toys.C):
        for given, expected in ((last, kept[i][0]), (W, kept[i][1])):
            head = tree.take(given["head"], i)
            np.testing.assert_allclose(head["kernel"], expected[0], rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(head["bias"], expected[1], rtol=1e-3, atol=1e-3)
    assert any((a.min() < 0.9) for _, W, _ in kept for a in W)


def test_a_client_is_scored_on_its_adapted_model():
    method, w, kept = method_and_numpy(1)
    i = naive.cohort(method, 0)[0]
    last, W, rounds = kept[i]
    weights = toys.TASK.init(KEYS.init)
    params = {"Dense_0": dict(zip(("kernel", "bias"), w[:2], strict=True))}
    params["head"] = dict(zip(("kernel", "bias"), w[2:], strict=True))
    private = (
        {"Dense_0": {"kernel": None, "bias": None}, "head": {"kernel": last[0], "bias": last[1]}},
        {"Dense_0": {"kernel": None, "bias": None}, "head": {"kernel": W[0], "bias": W[1]}},
        rounds,
    )
    client = tree.take(toys.POPULATION, i)._replace(private=private)
    work, _ = make_work(toys.FEDERATION, toys.FEDERATION.train[i], naive.FULL, KEYS.score)
    adapted, unchanged = method.tune(weights._replace(params=params), client, work)
    expected = mixed(w, last, learned(w, last, W, *naive.data_of(i), FIRST))
    naive.close(adapted, expected)
    toys.same(unchanged, private)


def test_more_layers_than_the_model_has_are_an_error():
    with pytest.raises(BadInput, match="layers must be from 0 to 3, got 4"):
        toys.make("fedala", layers=4)
