"""Neighbors in secure aggregation: their graph, and sums that cannot be unmasked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.transforms.neighbors import can_unmask, distances, make_ring

M = 8


def adjacency(m, neighbors):
    """[M, M]: whether the clients at two places of the ring share a mask, by their distance."""
    apart = (np.arange(m)[:, None] - np.arange(m)) % m
    return np.isin(np.minimum(apart, m - apart), distances(m, neighbors))


@pytest.mark.parametrize(("m", "neighbors"), [(8, 1), (8, 7), (8, 4), (7, 6), (7, 2), (2, 1)])
def test_every_client_has_the_given_number_of_neighbors(m, neighbors):
    graph = adjacency(m, neighbors)
    assert (graph.sum(0) == neighbors).all() and not graph.diagonal().any()


def test_the_order_differs_between_rounds_and_impossible_numbers_are_rejected():
    arrived = jnp.arange(30) < 15
    one, two = (make_ring(jax.random.key(t), arrived, 2).arrived for t in (0, 1))
    assert one.sum() == two.sum() == 15 and (one != two).any()
    assert "neighbors=5 must be below the number of clients" in complaint(distances, 5, 5)
    assert "neighbors=3 must be even" in complaint(distances, 5, 3)


def by_hand_can_unmask(graph, arrived, threshold):
    for of_client, has_arrived in zip(graph, arrived, strict=True):
        count = (of_client & arrived).sum()
        if (has_arrived or count) and count <= threshold * of_client.sum():
            return False
    return True


def test_a_sum_cannot_be_unmasked_with_too_few_neighbors():
    rng, seen = np.random.default_rng(1), []
    decide = jax.jit(can_unmask)
    for t in range(60):
        arrived = jnp.asarray(rng.random(M) < 0.8)
        for neighbors in (3, 4):
            ring = make_ring(jax.random.key(t), arrived, neighbors)
            graph = adjacency(M, neighbors)
            expected = by_hand_can_unmask(graph, np.asarray(ring.arrived), 0.5)
            assert bool(decide(ring, 0.5)) == expected
            seen.append(expected)
    assert 20 < sum(seen) < 100
