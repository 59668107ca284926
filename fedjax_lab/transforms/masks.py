"""Sums of words that show nothing but the sum: pairwise masks, and what becomes of lost clients.

M clients stand on a ring in a random order. The neighbors of a client are those at certain
distances from it, so that all have as many (k-regular, a Harary graph). x_i are client i's words of
b bits; all sums are modulo 2^b.

    y_i = x_i + B_i + sum_{neighbors j ahead} P_ij - sum_{neighbors j behind} P_ji     (a client)
    sum_i x_i = sum_i y_i - sum_i (B_i + sum_{lost j ahead} P_ij - sum_{lost j behind} P_ji)

where i runs over the clients whose words have arrived. P_ij is drawn from a secret that i and j
agree on, B_i from one of i's own: without it, words that arrive after their client was taken to be
lost could be read. Each client has shared the secrets of its masks among its neighbors. The server
learns B_i of those who have arrived and P_ij of those who have not, each from more than a share of
the neighbors; where too few of these have arrived it learns no sum at all.

Bonawitz et al., CCS 2017, doi:10.1145/3133956.3133982, where all clients are neighbors, and Bell et
al., CCS 2020, doi:10.1145/3372297.3417885, where few are.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import streams, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array, PyTree

SELF = 0  # in the place of a distance: the stream of a client's own mask


class Ring(NamedTuple):
    """Who is whose neighbor in a round."""

    key: Array  # the stream of all masks of the round
    place: Array  # [M] where each client of the cohort stands
    arrived: Array  # [M] whether the words of the client at each place have arrived
    distances: Array  # [D] at which a client has a neighbor ahead and one behind


def make_ring(key: Array, arrived: Array, neighbors: int) -> Ring:
    """The ring of clients whose words have arrived or not [M]. BadInput where there is none."""
    m = len(arrived)
    k_order, k_masks = jax.random.split(key)
    place = jax.random.permutation(k_order, m)
    of_place = jnp.zeros(m, bool).at[place].set(arrived)
    return Ring(k_masks, place, of_place, jnp.asarray(distances(m, neighbors)))


def distances(clients: int, neighbors: int) -> list[int]:
    """From 1 on, and half the ring for an odd number of neighbors. BadInput: there is no graph."""
    if neighbors >= clients:
        raise BadInput(
            f"config.aggregator.neighbors={neighbors} must be below the number of clients in a"
            f" round, {clients}"
        )
    if neighbors % 2 and clients % 2:
        raise BadInput(
            f"config.aggregator.neighbors={neighbors} must be even, because there are {clients}"
            " clients in a round; both cannot be odd"
        )
    return [*range(1, neighbors // 2 + 1), *[clients // 2] * (neighbors % 2)]


def masks(ring: Ring, like: PyTree) -> tuple[PyTree, PyTree]:
    """What each client adds to its words [M, ...], and the part of it that the server takes off.

    Each client draws its masks itself, two clients the same one, so that devices need not exchange
    masks. Memory is that of a few uploads of each client, however many neighbors there are.

    like: words of one client, or their shapes.
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
    """The sum of the words [M, ...] that have arrived, modulo 2^b, as the server computes it."""
    added, lifted = masks(ring, tree.take(words, 0))
    arrived = ring.arrived[ring.place]
    sent = jax.tree.map(jnp.add, words, added)
    return jax.tree.map(jnp.subtract, _sum(arrived, sent), _sum(arrived, lifted))


def can_unmask(ring: Ring, threshold: float) -> Array:
    """Whether enough neighbors have arrived, of all whose secrets the server needs.

    These are the clients that have arrived, and the lost ones that have a neighbor who has.

    threshold: the share of a client's neighbors, more than which it takes.
    """
    m = len(ring.arrived)
    here = jnp.arange(m)[:, None]
    ahead, behind = ring.arrived[(here + ring.distances) % m], ring.arrived[here - ring.distances]
    there = jnp.sum(ahead, 1) + jnp.sum(behind & (2 * ring.distances != m), 1)
    neighbors = jnp.sum(jnp.where(2 * ring.distances == m, 1, 2))
    needed = ring.arrived | (there > 0)
    return jnp.all(~needed | (there > threshold * neighbors))


def _draw(key, place, distance, like):
    """Uniform words from the stream of a pair: where its first client stands, and how far apart."""
    key = streams.extra(streams.extra(key, distance), place)
    leaves, structure = jax.tree.flatten(like)
    drawn = [
        jax.random.bits(streams.extra(key, number), a.shape, a.dtype)
        for number, a in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, drawn)


def _sum(arrived, words):
    """Over the clients [M] that have arrived, in the words' own type."""
    kept = tree.where(arrived, words, tree.zeros(words))
    return jax.tree.map(lambda a: jnp.sum(a, 0, dtype=a.dtype), kept)
