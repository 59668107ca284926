"""Sums of masked words: who is whose neighbor, exact sums, uniform words, lost clients."""

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
    """Whether clients i and j of the cohort [M, M] share a mask, by the distances on the ring."""
    place, m = np.asarray(ring.place), len(ring.place)
    apart = (place[:, None] - place) % m
    apart = np.minimum(apart, m - apart)
    return np.isin(apart, np.asarray(ring.distances))


@pytest.mark.parametrize(("m", "neighbors"), [(8, 1), (8, 7), (8, 4), (7, 6), (7, 2), (2, 1)])
def test_every_client_has_so_many_neighbors(m, neighbors):
    graph = adjacency(masks.make_ring(KEY, arrived_of(m), neighbors))
    assert (graph.sum(0) == neighbors).all() and not graph.diagonal().any()


def test_another_round_has_other_neighbors():
    rings = [masks.make_ring(jax.random.key(t), arrived_of(30), 2) for t in (0, 1)]
    assert (adjacency(rings[0]) != adjacency(rings[1])).any()


def test_graphs_that_cannot_be_are_refused():
    said = complaint(masks.distances, 5, 5)
    assert "neighbors=5 must be below the number of clients in a round, 5" in said
    said = complaint(masks.distances, 5, 3)
    assert "neighbors=3 must be even, because the number of clients in a round, 5, is odd" in said


@pytest.mark.parametrize(("neighbors", "dtype"), [(1, np.uint32), (5, np.uint16), (7, np.uint32)])
def test_the_sum_is_exact(neighbors, dtype):
    """Modulo 2^b, of those that arrived; masks of lost clients are taken off."""
    words, arrived = words_of(0, dtype=dtype), arrived_of(M, 2, 5, 6)
    ring = masks.make_ring(KEY, arrived, neighbors)
    made = jax.jit(masks.masked_sum)(ring, words)
    for a, x in zip(made, words, strict=True):
        np.testing.assert_array_equal(a, x[np.asarray(arrived)].sum(0, dtype=dtype))
        assert a.dtype == dtype


def chi_square(words):
    """That of the bytes of words, divided by its mean of 255 where they are uniform."""
    counts = np.bincount(np.asarray(words).view(np.uint8).ravel(), minlength=256)
    expected = counts.sum() / 256
    return ((counts - expected) ** 2 / expected).sum() / 255


def test_each_masked_upload_is_uniform_and_no_two_are_alike():
    """So is what the server has before it takes off masks that survivors share with the lost."""
    zeros = jnp.zeros((4, 20_000), jnp.uint32)
    ring = masks.make_ring(KEY, arrived_of(4, 1), 2)
    added, lifted = jax.jit(masks.masks)(ring, zeros[0])
    sent = np.asarray(zeros + added)
    assert all(0.6 < chi_square(a) < 1.4 for a in sent)  # 4.5 standard deviations
    assert np.abs(np.corrcoef(sent) - np.eye(4)).max() < 0.04
    there = sent[[0, 2, 3]].sum(0, dtype=np.uint32)
    assert 0.6 < chi_square(there) < 1.4
    np.testing.assert_array_equal(there, lifted[jnp.array([0, 2, 3])].sum(0, dtype=jnp.uint32))


def by_hand_can_unmask(graph, arrived, threshold):
    for neighbors, is_there in zip(graph, arrived, strict=True):
        there = (neighbors & arrived).sum()
        if (is_there or there) and there <= threshold * neighbors.sum():
            return False
    return True


def test_too_few_neighbors_cannot_unmask():
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


def test_memory_is_that_of_a_few_uploads():
    """Not that of an upload for each pair."""
    m, words = 32, jax.ShapeDtypeStruct((32, 10_000), jnp.uint32)
    ring = masks.make_ring(KEY, arrived_of(m), m - 1)
    compiled = jax.jit(masks.masked_sum).lower(ring, words).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 10 * tree.num_bytes(words)
