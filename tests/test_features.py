"""Checks FedPick's measures of features against loops, scikit-learn and worked examples."""

import numpy as np
import pytest
from sklearn.feature_selection import f_classif
from sklearn.neighbors import KNeighborsClassifier

from fedjax_lab.errors import BadInput
from fedjax_lab.papers.fedpick import features

RNG = np.random.default_rng(0)


def relu_features(n, d, seed=0):
    z = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    return np.maximum(z, 0)


# Sparsity


def test_sparsity_is_the_share_of_small_entries_of_unit_vectors():
    z = relu_features(20, 30) * np.logspace(0, -6, 20)[:, None]  # the norm of a row does not matter
    shares = []
    for row in z.astype(np.float64):
        unit = row / np.sqrt((row**2).sum())
        shares.append(sum(entry <= 0.1 for entry in unit) / 30)
    assert features.sparsity(z, 0.1) == pytest.approx(np.mean(shares))
    assert features.sparsity(z) < features.sparsity(z, 0.1)


# Fisher score


def fisher_by_hand(z, y):
    scores = []
    for column in z.astype(np.float64).T:
        between = within = 0.0
        for label in set(y.tolist()):
            of_class = [value for value, other in zip(column, y, strict=True) if other == label]
            center = sum(of_class) / len(of_class)
            between += len(of_class) * (center - sum(column) / len(column)) ** 2
            within += sum((value - center) ** 2 for value in of_class)
        scores.append(between / within)
    return scores


def test_fisher_score_matches_loops_and_scikit_learn():
    z, y = relu_features(40, 6), RNG.integers(0, 3, 40) + 4
    score = features.fisher_score(z, y)
    np.testing.assert_allclose(score, fisher_by_hand(z, y))
    # scikit-learn divides each sum by its degrees of freedom.
    np.testing.assert_allclose(score, f_classif(z, y)[0] * 2 / 37, rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fisher_score_of_constant_dimensions(dtype):
    """It is 0 if the dimension is constant, and infinite if it is constant within each class.

    Rounding errors do not count as variance: the mean of equal floats may differ from them.
    """
    y = np.arange(30) % 3
    z = np.stack([np.full(30, 0.1), np.zeros(30), 0.1 + 0.7 * y, RNG.uniform(size=30)], 1)
    z = z.astype(dtype)
    score = features.fisher_score(z, y)
    np.testing.assert_array_equal(score[:3], [0, 0, np.inf])
    assert 0 < score[3] < 1
    assert features.mean_fisher(z, y) == (pytest.approx(score[3] / 3), 1)
    mean, left_out = features.mean_fisher(np.array([[1.0], [2.0]]), np.array([0, 1]))
    assert np.isnan(mean) and left_out == 1  # no dimension is left
    z, y = np.tile(RNG.uniform(size=50), (101, 1)), RNG.integers(0, 7, 101)
    assert (z.mean(0) != z[0]).any()
    np.testing.assert_array_equal(features.fisher_score(z, y), 0)
    assert (features.fisher_score(z + y[:, None], y) == np.inf).all()


# Selection and probe


def test_top_dimensions_are_sorted_from_the_best():
    """Their number is rounded half up."""
    score = np.array([0.5, np.inf, 0.0, 2.0, 0.5])
    assert features.top_dimensions(score, 1.0).tolist() == [1, 3, 0, 4, 2]
    assert features.top_dimensions(score, 0.6, ties=np.arange(5)).tolist() == [1, 3, 4]
    cases = (0.5, 5, 3), (0.1, 14, 1), (0.1, 15, 2), (0.145, 100, 15), (0.7, 10, 7), (1.0, 3, 3)
    for ratio, d, count in cases:
        assert len(features.top_dimensions(np.arange(d), ratio)) == count
    for ratio in (0.0, 0.1, 1.5, -1.0):
        with pytest.raises(BadInput, match=f"ratio {ratio} keeps"):
            features.top_dimensions(np.arange(4), ratio)


def vote_by_hand(z, y, point):
    """The most frequent of the ten nearest labels; the nearest of them if several are tied."""
    distances = [np.sqrt(((row - point) ** 2).sum()) for row in z]
    labels = [y[i] for i in sorted(range(len(z)), key=distances.__getitem__)[:10]]
    most = max(labels.count(label) for label in labels)
    return next(label for label in labels if labels.count(label) == most)


def test_probe_is_the_vote_of_ten_neighbors():
    train, test = RNG.uniform(size=(60, 8)), RNG.uniform(size=(200, 8))  # no equal distances
    y, test_y = RNG.integers(0, 4, 60), RNG.integers(0, 4, 200)
    kept = np.array([6, 1, 2])
    votes = [vote_by_hand(train[:, kept], y, point) for point in test[:, kept]]
    share = features.probe(train, y, test, test_y, kept)
    assert share == pytest.approx(100 * np.mean(np.array(votes) == test_y))
    assert features.probe(train, y, test, np.array(votes), kept) == 100
    lowest = KNeighborsClassifier(10).fit(train[:, kept], y).predict(test[:, kept])
    assert (lowest != votes).any()  # scikit-learn's own rule for ties


def test_probe_uses_only_the_kept_dimensions():
    y = np.arange(40) % 2
    z = np.stack([y + 0.01 * RNG.normal(size=40), 100 * RNG.normal(size=40)], 1)
    assert features.probe(z, y, z, y, features.top_dimensions([1, 0], 0.5)) == 100
    assert features.probe(z, y, z, y, np.array([False, True])) < 90
    with pytest.raises(BadInput, match="at least 10 training examples, not 9"):
        features.probe(z[:9], y[:9], z, y, [0])


# Masks


def test_the_overlap_of_masks():
    """Equal frequencies are ordered by logits; ordered by index, all would agree completely."""
    assert features.selection_ratio(np.array([[1, 0, 0, 0], [1, 1, 1, 0]])) == 0.5
    frequency, none = np.array([0.9, 0.1, 0.8, 0.2]), np.zeros(4)
    assert features.overlap(frequency, frequency, none, none) == 1
    assert features.overlap(frequency, 1 - frequency, none, none) == 0
    assert features.overlap(frequency, np.array([0.9, 0.8, 0, 0.2]), none, none) == 1 / 3
    always, (i, j) = np.ones(10_000), RNG.normal(size=(2, 10_000))
    assert features.overlap(i, j, i, j) == pytest.approx(1 / 3, abs=0.02)  # of random halves
    assert features.overlap(always, always, i, i) == 1
    assert features.overlap(always, always, i, -i) == 0
    assert features.overlap(always, always, i, j) == pytest.approx(1 / 3, abs=0.02)
    some = np.array([1.0, 0, 0.5, 0.5])
    assert features.overlap(some, some, np.array([0, 9, 2, 1]), np.array([0, 9, 1, 2])) == 1 / 3
