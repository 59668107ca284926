"""Sums of integer words that reveal only the sum: pairwise masks, and the handling of lost clients.

M clients are placed on a ring in a random order. The neighbors of a client are the clients at
certain distances from it, so that all clients have the same number of neighbors (a k-regular Harary
graph). x_i are the words of client i, b bits each; all sums are modulo 2^b.

    y_i = x_i + B_i + sum_{neighbors j ahead} P_ij - sum_{neighbors j behind} P_ji     (a client)
    sum_i x_i = sum_i y_i - sum_i (B_i + sum_{lost j ahead} P_ij - sum_{lost j behind} P_ji)

where i runs over the clients whose words have arrived. P_ij is drawn from a secret that i and j
agree on, and B_i from a secret of i alone: without B_i the server could read words that arrive
after it has declared their client lost. Each client has shared the secrets of its masks among its
neighbors. The server learns B_i of the clients that have arrived and P_ij of the others; it needs
more than a threshold share of a client's neighbors for each of them. Where too few of these
neighbors have arrived, it learns no sum at all.

Bonawitz et al., CCS 2017, doi:10.1145/3133956.3133982, where all clients are neighbors, and Bell et
al., CCS 2020, doi:10.1145/3372297.3417885, where each client has few neighbors.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import streams, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array, PyTree

SELF = 0  # the distance that stands for a client's own mask


class Ring(NamedTuple):
    """The neighbors of the clients in a round."""

    key: Array  # the random stream of all masks of the round
    place: Array  # [M] the place of each client of the cohort on the ring
    arrived: Array  # [M] whether the words of the client at each place have arrived
    distances: Array  # [D] distances at which a client has a neighbor ahead and one behind


def make_ring(key: Array, arrived: Array, neighbors: int) -> Ring:
    """Places M clients on a ring. Raises BadInput if the number of neighbors is impossible.

    arrived: [M] bool, whether the words of each client have arrived.
    neighbors: k, the number of neighbors of each client.
    """
    m = len(arrived)
    k_order, k_masks = jax.random.split(key)
    place = jax.random.permutation(k_order, m)
    of_place = jnp.zeros(m, bool).at[place].set(arrived)
    return Ring(k_masks, place, of_place, jnp.asarray(distances(m, neighbors)))


def distances(clients: int, neighbors: int) -> list[int]:
    """Returns the distances of neighbors: 1, 2, ..., and half the ring for an odd `neighbors`.

    Raises BadInput if there is no regular graph with these numbers of clients and neighbors.
    """
    if neighbors >= clients:
        raise BadInput(
            f"config.aggregator.neighbors={neighbors} must be below the number of clients in a"
            f" round, {clients}"
        )
    if neighbors % 2 and clients % 2:
        raise BadInput(
            f"config.aggregator.neighbors={neighbors} must be even, because the number of clients"
            f" in a round, {clients}, is odd"
        )
    return [*range(1, neighbors // 2 + 1), *[clients // 2] * (neighbors % 2)]


def masks(ring: Ring, like: PyTree) -> tuple[PyTree, PyTree]:
    """Returns what each client adds to its words [M, ...] and what the server subtracts again.

    Both clients of a pair draw their common mask themselves, so that devices do not have to
    exchange masks. The memory is that of a few uploads of each client for any number of neighbors.

    like: the words of one client, or their shapes.
    """
    m = len(ring.arrived)

    def of_client(here):
        def step(number, sums):
            distance = ring.distances[number]
            ahead, behind = (here + distance) % m, (here - distance) % m
            opposite = 2 * distance == m  # ahead and behind are the same client: it counts once
            first, second = ~opposite | (here < ahead), ~opposite | (here > behind)
            plus, minus = (_draw(ring.key, p, distance, like) for p in (here, behind))
            parts = (first, second), (first & ~ring.arrived[ahead], second & ~ring.arrived[behind])
            return tuple(
                jax.tree.map(lambda s, p, q, of=of: s + p * of[0] - q * of[1], total, plus, minus)
                for total, of in zip(sums, parts, strict=True)
            )

        alone = _draw(ring.key, here, SELF, like)
        return jax.lax.fori_loop(0, len(ring.distances), step, (alone, alone))

    return jax.vmap(of_client)(ring.place)


def masked_sum(ring: Ring, words: PyTree) -> PyTree:
    """Returns the sum of the words [M, ...] that have arrived, modulo 2^b, from masked words."""
    added, lifted = masks(ring, tree.take(words, 0))
    arrived = ring.arrived[ring.place]
    sent = jax.tree.map(jnp.add, words, added)
    return jax.tree.map(jnp.subtract, _sum(arrived, sent), _sum(arrived, lifted))


def can_unmask(ring: Ring, threshold: float) -> Array:
    """Returns whether the server can unmask the sum, [] bool.

    It needs the secrets of all clients that have arrived, and of all lost clients with a neighbor
    that has arrived. For each of them enough neighbors must have arrived.

    threshold: more than this share of a client's neighbors must have arrived.
    """
    m = len(ring.arrived)
    here = jnp.arange(m)[:, None]
    ahead, behind = ring.arrived[(here + ring.distances) % m], ring.arrived[here - ring.distances]
    helpers = jnp.sum(ahead, 1) + jnp.sum(behind & (2 * ring.distances != m), 1)
    neighbors = jnp.sum(jnp.where(2 * ring.distances == m, 1, 2))
    needed = ring.arrived | (helpers > 0)
    return jnp.all(~needed | (helpers > threshold * neighbors))


def _draw(key, place, distance, like):
    """Uniform words from the random stream of the pair with this first place and distance."""
    key = streams.extra(streams.extra(key, distance), place)
    leaves, structure = jax.tree.flatten(like)
    drawn = [
        jax.random.bits(streams.extra(key, number), a.shape, a.dtype)
        for number, a in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, drawn)


def _sum(arrived, words):
    """The sum over the clients [M] that have arrived, in the type of the words."""
    kept = tree.where(arrived, words, tree.zeros(words))
    return jax.tree.map(lambda a: jnp.sum(a, 0, dtype=a.dtype), kept)
