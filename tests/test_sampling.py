"""Checks cohorts: which clients are drawn, how often, and with which shares."""

import jax
import numpy as np
import pytest
import toys
from naive import KEYS

from fedjax_lab import sampling


def test_a_cohort_has_distinct_members():
    draw = jax.jit(sampling.without_replacement, static_argnums=(1, 2))
    for count, m in ((7, 7), (10, 4), (5000, 30), (100_000, 1000)):
        ids = np.asarray(draw(KEYS.cohort, count, m))
        assert len(ids) == m and len(set(ids.tolist())) == m
        assert ids.min() >= 0 and ids.max() < count


@pytest.mark.parametrize("count", [12, 20])
def test_every_client_is_drawn_equally_often(count):
    """Draws three, by rank or by repeated draws; chi-square statistics of members and pairs."""
    draws = 200 * count
    keys = jax.random.split(KEYS.cohort, draws)
    ids = np.asarray(jax.vmap(lambda k: sampling.without_replacement(k, count, 3))(keys))

    def chi_square(counts):
        """The statistic, in standard deviations above its mean."""
        expected, freedom = counts.mean(), counts.size - 1
        return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)

    assert chi_square(np.bincount(ids.ravel(), minlength=count)) < 4
    pairs = np.zeros((count, count))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        np.add.at(pairs, (np.minimum(ids[:, a], ids[:, b]), np.maximum(ids[:, a], ids[:, b])), 1)
    assert chi_square(pairs[np.triu_indices(count, 1)]) < 4


def test_shares_of_each_sampling_rule():
    population = toys.POPULATION
    ids, share = sampling.by_size(KEYS.cohort, (), population, 3)
    n = np.asarray(population.n)[np.asarray(ids)]
    np.testing.assert_allclose(share, n / n.sum(), rtol=1e-6)
    np.testing.assert_allclose(sampling.equal(KEYS.cohort, (), population, 4)[1], 0.25)
    ids, share = sampling.all_clients(KEYS.cohort, (), population, 3)
    assert len(ids) == toys.C
    np.testing.assert_allclose(share, population.n / population.n.sum(), rtol=1e-6)
