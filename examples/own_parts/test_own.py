"""Tests of the example's parts: the interfaces that the simulator expects, and their behavior."""

from types import SimpleNamespace

import numpy as np
from own import SmallCNN, margin, power_law, rotated_digits, tilted

from fedjax_lab.testing import check_method, check_model, check_partition, check_source


def test_parts():
    check_method(tilted, tilt=0.5)
    check_model(SmallCNN, shape=(8, 8, 1), num_classes=10, channels=4)
    check_partition(power_law, num_clients=12, num_domains=4)
    check_source(rotated_digits)


def test_clients_with_larger_losses_count_more():
    """The mean of two clients' models follows Lemma 1; without a tilt it is FedAvg's."""
    share, loss, w = np.float32([[0.75, 0.25], [0, 1], [1, 5]])
    for tilt in (0.0, 2.0):
        a = share * np.exp(tilt * loss)
        (exchange,) = tilted(None, tilt=tilt).round
        mean = exchange.aggregate(None, (w, loss), SimpleNamespace(weight=share))
        np.testing.assert_allclose(mean, a @ w / a.sum(), rtol=1e-5)


def test_power_law():
    domain = np.arange(600) % 2
    parts = power_law(domain, domain, 6, np.random.default_rng(0), exponent=1.0)
    assert [len(part) for part in parts] == [163, 163, 82, 82, 55, 55]
    assert all(set(domain[part]) == {i % 2} for i, part in enumerate(parts))


def test_margin():
    logits = np.log([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]])
    np.testing.assert_allclose(margin(logits, np.array([0, 1]), np.ones(2)), [0.5, -0.5], 1e-5)
