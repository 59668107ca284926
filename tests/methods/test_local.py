"""Tests local training, in which clients share nothing."""

import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys

from fedjax_lab import tree

KEYS = naive.KEYS


@pytest.mark.exhaustive
def test_local_keeps_each_clients_running_statistics():
    stats = toys.player(toys.make("local"))(KEYS, 0, 1)[0].private.stats["BatchNorm_0"]["mean"]
    assert float(jnp.abs(stats).max(1).min()) > 0.01  # all have changed
    assert len(np.unique(np.asarray(stats), axis=0)) == toys.C


def test_local_trains_every_client_alone():
    method = toys.make("local", toys.TASK)
    first = naive.first_weights()
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 1)
    for i in (0, 5):  # all clients train, whatever the cohort
        expected = naive.sgd(first, *naive.data_of(i))
        got = naive.weights_of(tree.take(state.private, i))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
