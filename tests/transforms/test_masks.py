"""Sums of masked words: the graph of neighbors, exact sums, uniform words, lost clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import complaint

from fedjax_lab import tree
from fedjax_lab.transforms import masks

KEY = jax.random.key(5)
M, D = 8, 40


def arrived_of(m, *lost):
    return jnp.ones(m, bool).at[jnp.asarray(lost, int)].set(False)


def words_of(seed, m=M, dtype=np.uint32):
    """Two leaves [M, 8, 5] and [M]."""
    rng = np.random.default_rng(seed)
    top = np.iinfo(dtype).max
    return [rng.integers(0, top, shape, dtype, endpoint=True) for shape in ((m, 8, 5), (m,))]


def adjacency(ring):
    """[M, M]: whether clients i and j of the cohort share a mask, by their distance on the ring."""
    place, m = np.asarray(ring.place), len(ring.place)
    apart = (place[:, None] - place) % m
    apart = np.minimum(apart, m - apart)
    return np.isin(apart, np.asarray(ring.distances))


@pytest.mark.parametrize(("m", "neighbors"), [(8, 1), (8, 7), (8, 4), (7, 6), (7, 2), (2, 1)])
def test_every_client_has_the_given_number_of_neighbors(m, neighbors):
    graph = adjacency(masks.make_ring(KEY, arrived_of(m), neighbors))
    assert (graph.sum(0) == neighbors).all() and not graph.diagonal().any()


def test_neighbors_differ_between_rounds_and_impossible_numbers_are_rejected():
    rings = [masks.make_ring(jax.random.key(t), arrived_of(30), 2) for t in (0, 1)]
    assert (adjacency(rings[0]) != adjacency(rings[1])).any()
    assert "neighbors=5 must be below the number of clients" in complaint(masks.distances, 5, 5)
    assert "neighbors=3 must be even" in complaint(masks.distances, 5, 3)


@pytest.mark.parametrize(("neighbors", "dtype"), [(1, np.uint32), (5, np.uint16), (7, np.uint32)])
def test_the_sum_is_exact(neighbors, dtype):
    """It is the sum of the arrived words modulo 2^b, without the masks of lost clients."""
    words, arrived = words_of(0, dtype=dtype), arrived_of(M, 2, 5, 6)
    ring = masks.make_ring(KEY, arrived, neighbors)
    made = jax.jit(masks.masked_sum)(ring, words)
    for a, x in zip(made, words, strict=True):
        np.testing.assert_array_equal(a, x[np.asarray(arrived)].sum(0, dtype=dtype))
        assert a.dtype == dtype


def chi_square(words):
    """Chi-square of the bytes of words, divided by 255, its mean for uniform bytes."""
    counts = np.bincount(np.asarray(words).view(np.uint8).ravel(), minlength=256)
    expected = counts.sum() / 256
    return ((counts - expected) ** 2 / expected).sum() / 255


def test_masked_uploads_are_uniform_and_uncorrelated():
    """The sum is also uniform until the server removes the masks shared with lost clients."""
    zeros = jnp.zeros((4, 20_000), jnp.uint32)
    ring = masks.make_ring(KEY, arrived_of(4, 1), 2)
    added, lifted = jax.jit(masks.masks)(ring, zeros[0])
    sent = np.asarray(zeros + added)
    assert all(0.6 < chi_square(a) < 1.4 for a in sent)  # 4.5 standard deviations
    assert np.abs(np.corrcoef(sent) - np.eye(4)).max() < 0.04
    total = sent[[0, 2, 3]].sum(0, dtype=np.uint32)
    assert 0.6 < chi_square(total) < 1.4
    np.testing.assert_array_equal(total, lifted[jnp.array([0, 2, 3])].sum(0, dtype=jnp.uint32))


def by_hand_can_unmask(graph, arrived, threshold):
    for neighbors, has_arrived in zip(graph, arrived, strict=True):
        count = (neighbors & arrived).sum()
        if (has_arrived or count) and count <= threshold * neighbors.sum():
            return False
    return True


def test_a_sum_cannot_be_unmasked_with_too_few_neighbors():
    rng, seen = np.random.default_rng(1), []
    can_unmask = jax.jit(masks.can_unmask)
    for t in range(60):
        arrived = jnp.asarray(rng.random(M) < 0.8)
        for neighbors in (3, 4):
            ring = masks.make_ring(jax.random.key(t), arrived, neighbors)
            expected = by_hand_can_unmask(adjacency(ring), np.asarray(arrived), 0.5)
            assert bool(can_unmask(ring, 0.5)) == expected
            seen.append(expected)
    assert 20 < sum(seen) < 100


def test_memory_is_a_small_multiple_of_the_uploads():
    """It is below ten times that of the uploads, although each pair shares a mask."""
    m, words = 32, jax.ShapeDtypeStruct((32, 10_000), jnp.uint32)
    ring = masks.make_ring(KEY, arrived_of(m), m - 1)
    compiled = jax.jit(masks.masked_sum).lower(ring, words).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 10 * tree.num_bytes(words)
