"""k-means, balanced clusters against a plain reference, and the elbow criterion."""

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.methods import _clusters as clusters


def blobs(sizes):
    """Points around as many distant centers, in groups of these sizes."""
    centers = np.repeat(10 * np.eye(len(sizes)), sizes, 0)
    return centers + 0.1 * rng().normal(size=centers.shape)


def rng():
    return np.random.default_rng(0)


def test_kmeans_finds_well_separated_clusters_and_joins_equal_points():
    labels = clusters.assign(blobs([5, 3, 7]), 3, rng())
    blocks = [set(labels[a:b]) for a, b in ((0, 5), (5, 8), (8, 15))]
    assert [len(block) for block in blocks] == [1, 1, 1] and len(set.union(*blocks)) == 3
    # With balanced clusters, six points share four clusters of at most two.
    points = np.ones((6, 3))
    assert len(np.unique(clusters.assign(points, 4, rng()))) == 1
    np.testing.assert_array_equal(clusters.form(points, 4, False, rng())["member"], np.ones((1, 6)))
    assert np.bincount(clusters.assign(points, 4, rng(), balanced=True)).max() == 2


def test_balanced_clusters_do_not_exceed_their_cap():
    """cap = max(floor(1.2 n / K), ceil(n / K)); clusters that fit are left as they are."""
    for sizes in ([18, 1, 1], [10, 10, 1], [7, 7, 7], [30, 2, 2, 2, 4]):
        points, K, n = blobs(sizes), len(sizes), sum(sizes)
        labels = clusters.assign(points, K, rng(), balanced=True)
        cap = max(int(1.2 * n / K), -(-n // K))
        counts = np.bincount(labels, minlength=K)
        assert counts.sum() == n and counts.max() <= cap and labels.min() == 0
        if max(sizes) <= cap:
            np.testing.assert_array_equal(labels, clusters.assign(points, K, rng()))


def reference_balance(points, centers, rng):
    """Section 5.6, step by step; each member has a set of clusters that it must not join."""
    n, K = len(points), len(centers)
    cap, centers, last = max(int(1.2 * n / K), -(-n // K)), centers.copy(), None
    for _ in range(100):
        distance = [[np.sqrt(((p - c) ** 2).sum()) for c in centers] for p in points]
        a = [min(range(K), key=lambda k: (distance[i][k], k)) for i in range(n)]  # noqa: B023
        forbidden = [set() for _ in range(n)]
        empty = [k for k in range(K) if k not in a]
        for k in range(K):
            while a.count(k) > cap:
                members = [i for i in range(n) if a[i] == k]
                i = max(members, key=lambda i: (distance[i][k], -i))  # noqa: B023
                a[i] = -1
                forbidden[i].add(k)
        for i in range(n):
            if a[i] < 0:
                free = [k for k in range(K) if k not in forbidden[i] and a.count(k) < cap]
                a[i] = min(free, key=lambda k: (distance[i][k], k))  # noqa: B023
        for k in range(K):
            members = [i for i in range(n) if a[i] == k]
            centers[k] = points[members].mean(0) if members else points[rng.integers(n)]
        if not empty and a == last:
            break
        last = a
    return np.array(a)


def test_balanced_clusters_equal_those_of_a_plain_reference():
    """40 cases: ties between integer points, distant centers that stay empty, full clusters."""
    for seed in range(40):
        draw = np.random.default_rng(seed)
        n, K = int(draw.integers(6, 30)), int(draw.integers(2, 6))
        points = draw.integers(0, 4, (n, 2)).astype(float)
        points[: n // 2] = points[0]
        centers = draw.normal(size=(K, 2)) * (20 if seed % 3 == 0 else 2)
        actual = clusters.balance(points, centers, np.random.default_rng(seed))
        expected = reference_balance(points, centers, np.random.default_rng(seed))
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.slow
def test_the_elbow_is_the_point_farthest_from_the_chord():
    K, inertia = clusters.elbow(blobs([6, 6, 6, 6]), rng())
    n = len(inertia)
    assert (K, n) == (4, 12) and (np.diff(inertia) < 0).all()
    (x, y) = np.array([n - 1, inertia[-1] - inertia[0]]) / np.hypot(n - 1, inertia[-1] - inertia[0])
    distances = [abs(x * (inertia[k] - inertia[0]) - y * k) for k in range(n)]
    assert K == 1 + int(np.argmax(distances))


def test_the_elbow_of_few_or_equal_points():
    assert clusters.elbow(np.ones((5, 2)), rng())[0] == 1
    assert clusters.elbow(np.array([[0.0], [1.0]]), rng())[0] == 1
    assert clusters.elbow(np.array([[0.0], [0.5], [1.0]]), rng())[0] == 1  # a tie
    assert "at least two clients" in complaint(clusters.elbow, np.ones((1, 2)), rng())
