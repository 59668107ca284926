"""Compares FedALA with FedAvg in a special case, and with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from rounds import by_hand, one_client, rounds

from fedjax_lab import tree
from fedjax_lab.types import Weights

FIRST, ETA = 2, 5.0


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
    head = naive.first_weights()[2:]
    kept = [(head, [np.ones_like(a) for a in head], 0)] * toys.C

    def train(i, w, x, y):
        last, W, played = kept[i]
        W = learned(w, last, W, x, y, {0: 0, 1: FIRST}.get(played, 1))
        model = naive.sgd(mixed(w, last, W), x, y)
        kept[i] = model[2:], W, played + 1
        return model

    return method, by_hand(method, count, train), kept


@pytest.mark.slow
def test_against_numpy():
    """Seven rounds, so that some client takes part more than twice."""
    method, w, kept = method_and_numpy(7)
    state = rounds(method, 7)
    naive.close(state.server, w, rtol=1e-3, atol=1e-4)
    last, W, played = state.private
    np.testing.assert_array_equal(played, [r for *_, r in kept])
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
    last, W, played = kept[i]

    def as_params(body, head):
        names = ("kernel", "bias")
        return {k: dict(zip(names, v, strict=True)) for k, v in (("Dense_0", body), ("head", head))}

    no_body = [None, None]
    private = jax.tree.map(jnp.asarray, (as_params(no_body, last), as_params(no_body, W), played))
    weights = Weights(as_params(w[:2], w[2:]), {})
    adapted, unchanged = one_client(method.tune, weights, i, private)
    expected = mixed(w, last, learned(w, last, W, *naive.data_of(i), FIRST))
    naive.close(adapted, expected)
    toys.same(unchanged, private)
