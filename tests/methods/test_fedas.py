"""Compares FedAS with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work

KEY = jax.random.key(0)


@pytest.mark.slow
def test_against_numpy():
    method = toys.make("fedas", toys.TASK, align_lr=0.03)
    body = method.init(KEYS.init, toys.C).server
    last = toys.random_weights(toys.TASK.init(KEYS.init), 1)
    (b_i, T), kept, [align, train], batch = local_work(method, body, last)
    x, y = naive.data_of(0, toys.SKEWED)
    first, own = naive.first_weights(), naive.weights_of(last)
    naive.close(align.weights, first[:2] + own[2:])
    assert align.options["epochs"] == 1 and not align.options["only"]("params/head/bias")
    expected = 0.0
    for k in set(y):
        P = naive.features(own, x)[y == k].mean(0)
        expected += ((naive.features(first, x)[y == k] - P) ** 2).mean()
    assert align.loss(align.weights, batch, KEY)[0] == pytest.approx(expected, rel=1e-4)
    aligned = [a + 0.125 for a in first[:2] + own[2:]]
    naive.close(train.weights, aligned)
    trained = [a + 0.125 for a in aligned]
    naive.close(kept, trained)
    assert b_i.params["head"]["kernel"] is None
    _, g = naive.gradient(trained, x, y)
    assert T == pytest.approx(len(y) * sum((a**2).sum() for a in g), rel=1e-3)


def test_the_server_weighs_by_the_trace():
    method = toys.make("fedas", toys.TASK)
    body = method.init(KEYS.init, toys.C).server
    bodies = jax.tree.map(lambda a: jnp.stack([a, 3 * a]), body)
    after = method.round[0].aggregate(body, (bodies, jnp.array([1.0, 3.0])), toys.POPULATION)
    np.testing.assert_allclose(
        after.params["Dense_0"]["kernel"], 2.5 * body.params["Dense_0"]["kernel"], rtol=1e-5
    )
