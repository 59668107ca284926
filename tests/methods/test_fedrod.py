"""Compares FedRoD with plain NumPy."""

import jax
import naive
import numpy as np
import pytest
import toys
from rounds import by_hand, rounds

from fedjax_lab import tree
from fedjax_lab.types import State


@pytest.mark.slow
def test_fedrod_against_numpy():
    method = toys.make("fedrod", toys.TASK)
    phi = [naive.first_weights()[2:]] * toys.C

    def train(i, w, x, y):
        shift = -np.log(np.maximum(naive.counts(i), 1e-8))

        def gradient_of(both):
            v, h = both[:4], naive.features(both[:4], x)
            _, generic = naive.gradient(v, x, y, shift=shift)
            as_body = [np.eye(h.shape[1]), 0 * h[0], *both[4:]]
            _, personal = naive.gradient(as_body, h, y, shift=-naive.logits(v, x))
            return generic + personal[2:]

        both = naive.descend(w + phi[i], gradient_of)
        phi[i] = both[4:]
        return both[:4]

    w = by_hand(method, 3, train, toys.SKEWED)
    state = rounds(method, 3, federation=toys.SKEWED)
    naive.close(state.server, w, rtol=1e-3, atol=1e-4)
    for i in range(toys.C):
        head = tree.take(state.private, i)
        np.testing.assert_allclose(head["kernel"], phi[i][0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(head["bias"], phi[i][1], rtol=1e-3, atol=1e-4)
    x, _ = naive.data_of(0)
    client = tree.take(toys.POPULATION._replace(private=state.private), 0)
    logits = method.predict(state.server, client, x)
    expected = naive.logits(w[:2] + naive.add(w[2:], phi[0]), x)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)
    message, zero_head = method.newcomer(state)
    generic = method.predict(message, client._replace(private=zero_head), x)
    np.testing.assert_allclose(generic, naive.logits(w, x), rtol=1e-3, atol=1e-3)


def test_a_client_adds_the_logits_of_its_head_and_a_new_one_has_zeros():
    method, shapes = toys.make("fedrod", toys.TASK), jax.eval_shape(toys.TASK.init, naive.KEYS.init)
    w, phi = (toys.random_weights(shapes, seed) for seed in (1, 2))
    client = tree.take(toys.POPULATION, 0)._replace(private=phi.params["head"])
    (x, _), each = naive.data_of(0), naive.weights_of(w)
    expected = naive.logits(each[:2] + naive.add(each[2:], naive.weights_of(phi)[2:]), x)
    got = jax.jit(method.predict)(w, client, x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)
    message, head = jax.jit(method.newcomer)(State(w, ()))
    toys.same(message, w)
    assert not np.any(head["kernel"]) and not np.any(head["bias"])
