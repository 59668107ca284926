"""Compares APFL with FedAvg and Local in special cases, and with plain NumPy."""

import jax
import naive
import numpy as np
import pytest
import toys
from rounds import by_hand, rounds
from slow_cases import exhaustive_but

from fedjax_lab import tree


def mix(alpha, v, w):
    return naive.add([alpha * a for a in v], w, 1 - alpha)


def both_gradients(alpha, x, y):
    """A function that returns the gradients with respect to w and v in one list."""

    def gradient_at(both):
        w, v = both[:4], both[4:]
        of_mixture = naive.gradient(mix(alpha, v, w), x, y)[1]
        return naive.gradient(w, x, y)[1] + [alpha * g for g in of_mixture]

    return gradient_at


@pytest.mark.parametrize("adaptive", exhaustive_but([True], [True, False]))
def test_against_numpy(adaptive):
    method = toys.make("apfl", toys.TASK, alpha=0.3, adaptive=adaptive)
    v, alpha = [naive.first_weights()] * toys.C, [0.3] * toys.C

    def train(i, w, x, y):
        if adaptive:
            _, g = naive.gradient(mix(alpha[i], v[i], w), x, y)
            slope = sum((a * b).sum() for a, b in zip(naive.sub(v[i], w), g, strict=True))
            alpha[i] = min(1, max(0, alpha[i] - naive.LR * slope))
        both = naive.descend(w + v[i], both_gradients(alpha[i], x, y))
        v[i] = both[4:]
        return both[:4]

    w, state = by_hand(method, 3, train), rounds(method, 3)
    naive.close(state.server, w)
    personal, shares = state.private
    np.testing.assert_allclose(shares, alpha, rtol=1e-4)
    assert adaptive == (len(set(alpha)) > 1)
    predict, x = jax.jit(method.predict), toys.FEDERATION.x[:5]
    for i in range(toys.C):
        naive.close(tree.take(personal, i), v[i])
        client = tree.take(toys.POPULATION._replace(private=state.private), i)
        logits = naive.logits(mix(alpha[i], v[i], w), x)
        np.testing.assert_allclose(predict(state.server, client, x), logits, rtol=1e-3, atol=1e-3)
    message, private = method.newcomer(state)  # a new client predicts with the global model
    of_new = predict(message, client._replace(private=private), x)
    toys.close(of_new, toys.TASK.apply(message, x).logits)
