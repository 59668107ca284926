"""The parts are such as the simulator expects, and each does what it says."""

import jax
import numpy as np
from own import SmallCNN, margin, power_law, rotated_digits, tilted

import fedjax_lab
from fedjax_lab.testing import check_method, check_model, check_partition, check_source


def test_parts():
    check_method(tilted, tilt=0.5)
    check_model(SmallCNN, shape=(8, 8, 1), num_classes=10, channels=4)
    check_partition(power_law, num_clients=12, num_domains=4)
    check_source(rotated_digits)


def test_no_tilt_is_fedavg():
    def final(**method):
        config = {
            "data": {"name": rotated_digits},
            "partition": {"name": power_law, "num_clients": 4},
            "model": {"name": SmallCNN, "channels": 2, "hidden": 8},
            "method": method,
            "run": {"rounds": 2, "eval_every": 2},
        }
        return jax.tree.leaves(fedjax_lab.run(config, quiet=True).states[0])

    for a, b in zip(final(name=tilted, tilt=0.0), final(name="fedavg"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_power_law():
    domain = np.arange(600) % 2
    parts = power_law(domain, domain, 6, np.random.default_rng(0), exponent=1.0)
    assert [len(part) for part in parts] == [163, 163, 82, 82, 55, 55]
    assert all(set(domain[part]) == {i % 2} for i, part in enumerate(parts))


def test_margin():
    logits = np.log([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]])
    np.testing.assert_allclose(margin(logits, np.array([0, 1]), np.ones(2)), [0.5, -0.5], 1e-5)
