"""Compares APFL with FedAvg and Local in special cases, and with plain NumPy."""

import naive
import numpy as np
import pytest
import toys
from rounds import averaged

from fedjax_lab import simulate, tree

KEYS = naive.KEYS


@pytest.mark.slow
def test_with_alpha_0_clients_predict_with_the_model_of_fedavg():
    method = toys.make("apfl", alpha=0.0, adaptive=False)
    state, _ = toys.player(method)(KEYS, 0, 3)
    toys.same(state.server, averaged()[0].server)
    client = tree.take(toys.POPULATION._replace(private=state.private), 2)
    x = toys.FEDERATION.x[:5]
    toys.same(method.predict(state.server, client, x), toys.NORM.apply(state.server, x).logits)


@pytest.mark.slow
def test_alpha_1_gives_the_personal_models_of_local_training():
    all_clients = toys.PLAN._replace(cohort=toys.C)
    method = toys.make("apfl", alpha=1.0, adaptive=False)
    state, _ = toys.player(method, plan=all_clients)(KEYS, 0, 3)
    alone, _ = toys.player(toys.make("local"), plan=all_clients)(KEYS, 0, 3)
    toys.close(state.private[0], alone.private, rtol=1e-5, atol=1e-6)


def mix(alpha, v, w):
    return naive.add([alpha * a for a in v], w, 1 - alpha)


def both_gradients(alpha, x, y):
    """A function that returns the gradients with respect to w and v in one list."""

    def gradient_at(both):
        w, v = both[:4], both[4:]
        of_mixture = naive.gradient(mix(alpha, v, w), x, y)[1]
        return naive.gradient(w, x, y)[1] + [alpha * g for g in of_mixture]

    return gradient_at


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [True, False])
def test_against_numpy(adaptive):
    method = toys.make("apfl", toys.TASK, alpha=0.3, adaptive=adaptive)
    w = naive.first_weights()
    v, alpha = [w] * toys.C, [0.3] * toys.C
    for t in range(3):
        models = []
        for i in (ids := naive.cohort(method, t)):
            x, y = naive.data_of(i)
            if adaptive:
                _, g = naive.gradient(mix(alpha[i], v[i], w), x, y)
                slope = sum((a * b).sum() for a, b in zip(naive.sub(v[i], w), g, strict=True))
                alpha[i] = min(1, max(0, alpha[i] - naive.LR * slope))
            both = naive.descend(w + v[i], both_gradients(alpha[i], x, y))
            models.append(both[:4])
            v[i] = both[4:]
        w = naive.mean_by_size(ids, models)
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 3)
    naive.close(state.server, w)
    personal, shares = state.private
    np.testing.assert_allclose(shares, alpha, rtol=1e-4)
    assert adaptive == (len(set(alpha)) > 1)
    for i in range(toys.C):
        naive.close(tree.take(personal, i), v[i])


def test_a_new_client_predicts_with_the_global_model():
    method = toys.make("apfl", toys.TASK)
    state = simulate.init(method, KEYS, toys.C)
    message, private = method.newcomer(state)
    client = tree.take(toys.POPULATION, 0)._replace(private=private)
    x = toys.FEDERATION.x[:5]
    toys.close(method.predict(message, client, x), toys.TASK.apply(message, x).logits)
