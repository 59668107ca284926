"""Compares FedDisco with FedAvg in a special case, and with plain NumPy."""

import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from rounds import rounds

from fedjax_lab import tree
from fedjax_lab.methods.feddisco import shares


def discrepancy(i, distance):
    """The distance of a client's classes from the uniform distribution."""
    q = naive.counts(i) / naive.counts(i).sum()
    if distance == "l2":
        return np.linalg.norm(q - 1 / toys.K)
    return sum(p * np.log(p * toys.K) for p in q if p > 0)


@pytest.mark.slow
@pytest.mark.parametrize("distance", ["kl", pytest.param("l2", marks=pytest.mark.exhaustive)])
def test_feddisco_against_numpy(distance):
    a, b = 0.8, 0.1
    method = toys.make("feddisco", toys.TASK, a=a, b=b, distance=distance)
    w, negative = naive.first_weights(), 0
    for t in range(3):
        ids = naive.cohort(method, t)
        d = np.array([discrepancy(i, distance) for i in ids])
        p = naive.shares(ids, toys.SKEWED) - a * (d / d.sum() if distance == "kl" else d) + b
        negative += (p < 0).any()
        p = np.maximum(p, 0)
        models = [naive.sgd(w, *naive.data_of(i, toys.SKEWED)) for i in ids]
        w = naive.mean(p / p.sum(), models)
    assert negative
    naive.close(rounds(method, 3, federation=toys.SKEWED).server, w)


def test_shares_fall_back_to_sizes_and_are_0_for_lost_uploads():
    cohort = tree.take(toys.POPULATION, jnp.arange(3))._replace(
        weight=jnp.array([0.25, 0.75, 0.0]), arrived=jnp.array([True, True, False])
    )
    np.testing.assert_array_equal(shares(cohort, jnp.ones(3)), [0.25, 0.75, 0])
    np.testing.assert_allclose(shares(cohort, jnp.array([0.0, 0.5, -1.0])), [0.5, 0.5, 0])
