"""Tests FedRoD against FedAvg and NumPy."""

import naive
import numpy as np
import pytest
import toys

from fedjax_lab import simulate, tree

KEYS = naive.KEYS


@pytest.mark.slow
def test_fedrod_with_equal_counts_trains_the_generic_model_as_fedavg():
    """log n_i is then constant, so that the generic loss is the cross-entropy."""
    rng = np.random.default_rng(0)
    y = np.asarray(toys.FEDERATION.y[:400])
    rows = [rng.choice(np.flatnonzero(y == k), (toys.C, 5)) for k in range(toys.K)]
    federation = toys.FEDERATION._replace(train=toys.as_rows(np.concatenate(rows, 1)))
    one, _ = toys.player(toys.make("fedrod"), federation=federation)(KEYS, 0, 3)
    other, _ = toys.player(toys.make("fedavg"), federation=federation)(KEYS, 0, 3)
    toys.close(one.server, other.server)


@pytest.mark.slow
def test_fedrod_against_numpy():
    method = toys.make("fedrod", toys.TASK)
    w = naive.weights_of(simulate.init(method, KEYS, toys.C).server)
    phi_by_id = {i: w[2:] for i in range(toys.C)}
    for t in range(3):
        ids = naive.cohort(method, t)
        models = []
        for i in ids:
            x, y = naive.data_of(i, toys.SKEWED)
            shift = -np.log(np.maximum(naive.counts(i), 1e-8))

            def gradient_of(both, x=x, y=y, shift=shift):
                v, phi = both[:4], both[4:]
                _, generic = naive.gradient(v, x, y, shift=shift)
                h = naive.features(v, x)
                fixed = h @ v[2] + v[3]
                _, personal = naive.gradient(
                    [np.eye(h.shape[1]), 0 * h[0], *phi], h, y, shift=-fixed
                )
                return generic + personal[2:]

            both = naive.descend(w + phi_by_id[i], gradient_of)
            models.append(both[:4])
            phi_by_id[i] = both[4:]
        w = naive.mean_by_size(ids, models, toys.SKEWED)
    state, _ = toys.player(method, plan=naive.FULL, federation=toys.SKEWED)(KEYS, 0, 3)
    naive.close(state.server, w, rtol=1e-3, atol=1e-4)
    for i in range(toys.C):
        phi = tree.take(state.private, i)
        np.testing.assert_allclose(phi["kernel"], phi_by_id[i][0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(phi["bias"], phi_by_id[i][1], rtol=1e-3, atol=1e-4)
    x, _ = naive.data_of(0)
    h = naive.features(w, x)
    client = tree.take(toys.POPULATION._replace(private=state.private), 0)
    expected = h @ (w[2] + phi_by_id[0][0]) + w[3] + phi_by_id[0][1]
    np.testing.assert_allclose(
        method.predict(state.server, client, x), expected, rtol=1e-3, atol=1e-3
    )
    message, zero_head = method.newcomer(state)
    generic = method.predict(message, client._replace(private=zero_head), x)
    np.testing.assert_allclose(generic, h @ w[2] + w[3], rtol=1e-3, atol=1e-3)
